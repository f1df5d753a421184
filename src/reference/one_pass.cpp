// FlashAttention without tiles, one key at a time in one pass (Ye, sec. 3):
//   m_j  = max(m_{j-1}, x_j)
//   d'_j = d'_{j-1} e^{m_{j-1} - m_j} + e^{x_j - m_j}
//   o'_j = o'_{j-1} (d'_{j-1} e^{m_{j-1} - m_j} / d'_j) + (e^{x_j - m_j} / d'_j) v_j,     O = o'_N
// Softmax has no such form, its output has one element per key; attention's output has not. o' is normalised in every
// step, which costs a division per key and rounds o' once more per key: flash-2 leaves it unscaled.

#include <algorithm>
#include <cmath>

#include "reference/ladder.hpp"

namespace tessella::reference {
namespace {

int64_t scratch_floats(const core::Problem& p) { return 2 * p.head_dim_qk + 2 * p.head_dim_v; }

double bytes_moved(const Head& head) {
  const auto pairs = static_cast<double>(head.visible_pairs());
  return static_cast<double>(head.len_q()) * (head.row_bytes_qk() + head.row_bytes_out()) +
         pairs * (head.row_bytes_qk() + head.row_bytes_v());
}

void run(const Head& head, float* scratch) {
  float* q = scratch;
  float* k = q + head.head_dim_qk();
  float* v = k + head.head_dim_qk();
  float* o = v + head.head_dim_v();
  for (int64_t i = 0; i < head.len_q(); ++i) {
    head.load_q(i, q);
    float m = first_maximum(head);
    float d = first_sum(head);
    std::fill(o, o + head.head_dim_v(), 0.0F);
    for (int64_t j = 0; j < head.len_kv(); ++j) {
      if (!head.visible(i, j)) continue;
      const float x = head.score(i, j, q, k);
      head.load_v(j, v);
      if (x == kHidden<float>) continue;  // e^{-inf - -inf} is NaN
      const float m_new = std::max(m, x);
      const float d_old = d * std::exp(m - m_new);
      const float e = std::exp(x - m_new);
      m = m_new;
      d = d_old + e;
      const float rescale = d_old / d;
      const float a = e / d * head.dropout(i, j);  // dropped keys stay in the sum
      for (int64_t c = 0; c < head.head_dim_v(); ++c) o[c] = o[c] * rescale + a * v[c];
    }
    head.store(i, o, log_sum(m, d));
  }
}

}  // namespace

const Algorithm kOnePass = {
    "reference.one_pass", "FlashAttention untiled: one pass, one key at a time", 1, scratch_floats, bytes_moved, run};

}  // namespace tessella::reference
