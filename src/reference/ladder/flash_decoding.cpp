// Flash-Decoding (PyTorch blog, 2023-10-12). FlashAttention-2 is parallel over queries and finds too little work if
// they are few. So the keys are split; each split s computes attention and stores its state. A second kernel merges:
//   m = max_s m_s,   l = sum_s e^{m_s - m} l_s,   O = sum_s e^{m_s - m} O_s / l
// The blog keeps O_s / l_s and the one number L_s = m_s + log l_s. In fp32 that rounds l_s away as m_s grows: at scores
// of 3,000 L_s is off by 1e-4, and so is the weight of the split. So this stores m_s and l_s separately, and O_s
// unscaled. The merge includes the sink as a split of one key without a value. K and V are read as often as by
// FlashAttention-2; the states are extra traffic.

#include <algorithm>
#include <cmath>

#include "operations/attention/shape.hpp"
#include "reference/ladder/splits.hpp"

namespace tessella::reference {
namespace {

int64_t scratch_floats(const core::AttentionShape& p) {
  return ScoreTile::floats(p) + kMostSplits * p.seqlen_q * (p.head_dim_v + 2) + p.head_dim_v;
}

double state_bytes(const Head& head) { return static_cast<double>(head.head_dim_v() + 2) * sizeof(float); }

double bytes_moved(const Head& head) {
  const Splits splits(head);
  const auto states = static_cast<double>(splits.count() * head.len_q());
  return split_bytes(head, splits) + states * 2 * state_bytes(head) +
         static_cast<double>(head.len_q()) * head.row_bytes_out();
}

void run(const Head& head, float* scratch) {
  const int64_t tile_q = tiles(head).q, dim = head.head_dim_v(), rows = head.len_q();
  const Splits splits(head);
  const int64_t states = splits.count() * rows;
  ScoreTile tile(head, scratch);
  float* out = tile.rest();     // [head_dim_v]
  float* o = out + dim;         // [splits][len_q][head_dim_v]
  float* l = o + states * dim;  // [splits][len_q]
  float* m = l + states;        // [splits][len_q]

  std::fill(o, o + states * dim, 0.0F);
  std::fill(l, l + states, 0.0F);
  std::fill(m, m + states, kHidden<float>);
  for (int64_t split = 0; split < splits.count(); ++split) {
    for (int64_t i0 = 0; i0 < rows; i0 += tile_q) {
      const int64_t i1 = std::min(i0 + tile_q, rows);
      tile.load_queries(i0, i1);
      tile.for_each_row(splits.begin(split), splits.end(split),
                        [&](int64_t r, float* products, int64_t j0, int64_t j1, const float* v) {
                          const int64_t state = split * rows + i0 + r;
                          online_step(head, i0 + r, products, j0, j1, v, o + state * dim, l[state], m[state]);
                        });
      head.moved(static_cast<double>(i1 - i0) * state_bytes(head));
    }
  }
  for (int64_t i = 0; i < rows; ++i) {
    const float sink = first_maximum(head);
    float largest = sink;
    for (int64_t state = i; state < states; state += rows) largest = std::max(largest, m[state]);
    float sum = sink == largest ? first_sum(head) : first_sum(head) * std::exp(sink - largest);
    std::fill(out, out + dim, 0.0F);
    for (int64_t state = i; state < states; state += rows) {
      head.moved(state_bytes(head));
      if (l[state] == 0) continue;  // nothing seen: e^{-inf - -inf} is NaN
      const float weight = std::exp(m[state] - largest);
      sum += weight * l[state];
      for (int64_t c = 0; c < dim; ++c) out[c] += weight * o[state * dim + c];
    }
    const float lse = finish_row(dim, out, sum, largest);
    head.store(i, out, lse);
  }
}

}  // namespace

const Algorithm kFlashDecoding = {"reference.flash_decoding",
                                  "Flash-Decoding: keys split, their states merged in a second kernel",
                                  1,
                                  scratch_floats,
                                  bytes_moved,
                                  run};

}  // namespace tessella::reference
