// FlashAttention without tiles, one key at a time in one pass (Ye, sec. 3):
//   m_j  = max(m_{j-1}, x_j)
//   d'_j = d'_{j-1} e^{m_{j-1} - m_j} + e^{x_j - m_j}
//   o'_j = o'_{j-1} (d'_{j-1} e^{m_{j-1} - m_j} / d'_j) + (e^{x_j - m_j} / d'_j) v_j,     O = o'_N
// Softmax has no such form, its output has one element per key; attention's output has not. o' is normalised in every
// step, which costs a division per key and would round o' once more per key: an fp32 o' errs by some sqrt(N) units,
// which no other algorithm does. So o' and d' are double here; flash-2, which leaves o unscaled, needs none of it.

#include <algorithm>
#include <cmath>

#include "operations/attention/shape.hpp"
#include "reference/ladder/ladder.hpp"

namespace tessella::reference {
namespace {

int64_t scratch_floats(const core::AttentionShape& p) {
  const int64_t floats = 2 * p.head_dim_qk + 3 * p.head_dim_v;  // o' takes two for one
  return floats + floats % 2;                                   // the next thread's doubles are aligned too
}

double bytes_moved(const Head& head) {
  const auto pairs = static_cast<double>(head.visible_pairs());
  return static_cast<double>(head.len_q()) * (head.row_bytes_qk() + head.row_bytes_out()) +
         pairs * (head.row_bytes_qk() + head.row_bytes_v());
}

void run(const Head& head, float* scratch) {
  auto* o = reinterpret_cast<double*>(scratch);
  float* q = scratch + 2 * head.head_dim_v();
  float* k = q + head.head_dim_qk();
  float* v = k + head.head_dim_qk();
  for (int64_t i = 0; i < head.len_q(); ++i) {
    head.load_q(i, q);
    float m = first_maximum(head);
    double d = first_sum(head);
    std::fill(o, o + head.head_dim_v(), 0.0);
    for (int64_t j = 0; j < head.len_kv(); ++j) {
      if (!head.visible(i, j)) continue;
      const float x = head.score(i, j, q, k);
      head.load_v(j, v);
      if (x == kHidden<float>) continue;  // e^{-inf - -inf} is NaN
      const float m_new = std::max(m, x);
      const double d_old = d * static_cast<double>(std::exp(m - m_new));
      const double e = static_cast<double>(std::exp(x - m_new));
      m = m_new;
      d = d_old + e;
      const double rescale = d_old / d;
      const double a = e / d * static_cast<double>(head.dropout(i, j));  // dropped keys stay in the sum
      for (int64_t c = 0; c < head.head_dim_v(); ++c) o[c] = o[c] * rescale + a * static_cast<double>(v[c]);
    }
    std::transform(o, o + head.head_dim_v(), v, [](double value) { return static_cast<float>(value); });
    head.store(i, v, log_sum(m, static_cast<float>(d)));
  }
}

}  // namespace

const Algorithm kOnePass = {
    "reference.one_pass", "FlashAttention untiled: one pass, one key at a time", 1, scratch_floats, bytes_moved, run};

}  // namespace tessella::reference
