// Attention from online softmax, 2 passes over the keys of a row (Milakov and Gimelshein, arXiv 1805.02867; Ye, sec.
// 2):
//   pass 1:  m_j = max(m_{j-1}, x_j),   d'_j = d'_{j-1} e^{m_{j-1} - m_j} + e^{x_j - m_j}
//   pass 2:  o_j = o_{j-1} + (e^{x_j - m_N} / d'_N) v_j
// The sum is kept relative to the maximum so far, which fuses the first two passes of safe softmax.

#include <algorithm>
#include <cmath>

#include "operations/attention/shape.hpp"
#include "reference/ladder/ladder.hpp"

namespace tessella::reference {
namespace {

int64_t scratch_floats(const core::AttentionShape& p) { return 2 * p.head_dim_qk + 2 * p.head_dim_v; }

double bytes_moved(const Head& head) {
  const auto pairs = static_cast<double>(head.visible_pairs());
  return static_cast<double>(head.len_q()) * (head.row_bytes_qk() + head.row_bytes_out()) +
         pairs * (2 * head.row_bytes_qk() + head.row_bytes_v());
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
    for (int64_t j = 0; j < head.len_kv(); ++j) {
      if (!head.visible(i, j)) continue;
      const float x = head.score(i, j, q, k);
      if (x == kHidden<float>) continue;  // e^{-inf - -inf} is NaN
      const float m_new = std::max(m, x);
      d = d * std::exp(m - m_new) + std::exp(x - m_new);
      m = m_new;
    }

    std::fill(o, o + head.head_dim_v(), 0.0F);
    for (int64_t j = 0; j < head.len_kv(); ++j) {
      if (!head.visible(i, j)) continue;
      const float x = head.score(i, j, q, k);
      head.load_v(j, v);
      if (x == kHidden<float>) continue;
      const float a = std::exp(x - m) / d * head.dropout(i, j);
      for (int64_t c = 0; c < head.head_dim_v(); ++c) o[c] += a * v[c];
    }
    head.store(i, o, log_sum(m, d));
  }
}

}  // namespace

const Algorithm kOnlineSoftmax = {"reference.online_softmax",
                                  "two passes over the keys: maximum and sum, output",
                                  2,
                                  scratch_floats,
                                  bytes_moved,
                                  run};

}  // namespace tessella::reference
