// Attention from safe softmax, 3 passes over the keys of a row (Ye, "From online softmax to FlashAttention", sec. 1):
//   pass 1:  m_j = max(m_{j-1}, x_j)
//   pass 2:  d_j = d_{j-1} + e^{x_j - m_N}
//   pass 3:  o_j = o_{j-1} + (e^{x_j - m_N} / d_N) v_j
// Nothing of length N is stored, so every pass computes x_j = score(q.k_j) again.

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
         pairs * (3 * head.row_bytes_qk() + head.row_bytes_v());
}

void run(const Head& head, float* scratch) {
  float* q = scratch;
  float* k = q + head.head_dim_qk();
  float* v = k + head.head_dim_qk();
  float* o = v + head.head_dim_v();
  for (int64_t i = 0; i < head.len_q(); ++i) {
    head.load_q(i, q);
    float m = head.sink();
    for (int64_t j = 0; j < head.len_kv(); ++j) {
      if (head.visible(i, j)) m = std::max(m, head.score(i, j, q, k));
    }
    if (m == kHidden<float>) m = 0;  // no key is seen: the sum is 0 whatever the maximum

    float d = std::exp(head.sink() - m);
    for (int64_t j = 0; j < head.len_kv(); ++j) {
      if (head.visible(i, j)) d += std::exp(head.score(i, j, q, k) - m);
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

const Algorithm kSafeSoftmax = {
    "reference.safe_softmax", "three passes over the keys: maximum, sum, output", 3, scratch_floats, bytes_moved, run};

}  // namespace tessella::reference
