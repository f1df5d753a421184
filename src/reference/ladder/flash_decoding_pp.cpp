// FlashDecoding++ (arXiv 2311.01282, section 3): softmax is the same for any phi in the maximum's stead, so that with
// one phi for all splits these need not know each other's maximum, and none is rescaled:
//   O_s = sum_j e^{x_j - phi} v_j,   l_s = sum_j e^{x_j - phi},   O = sum_s O_s / sum_s l_s
// Every x_j - phi that is seen must lie in (a, b); a row where one does not stops there and is computed again as
// FlashAttention-2 does. The paper draws phi, a and b from statistics of a model's scores. Here they are what fp32
// holds: its precision is the same at every exponent, so that only sums and products that overflow or vanish matter.
// Without a maximum no weight is 1, so that the products, their sums and the division would each round once more than
// in the other algorithms, which shows where a row sees few keys: O and l are double here, as in one_pass.

#include <algorithm>
#include <cmath>

#include "operations/attention/shape.hpp"
#include "reference/ladder/splits.hpp"

namespace tessella::reference {
namespace {

constexpr float kPhi = 0;
constexpr float kLow = -40, kHigh = 40;  // e^40 = 2e17, and 2^30 times that is far from 3e38

int64_t scratch_floats(const core::AttentionShape& p) {
  const int64_t states = 2 * kMostSplits * p.seqlen_q * (p.head_dim_v + 1);  // a double takes two for one
  const int64_t floats = states + p.seqlen_q + p.head_dim_v + ScoreTile::floats(p);
  return floats + floats % 2;  // the next thread's doubles are aligned too
}

double state_bytes(const Head& head) { return static_cast<double>(head.head_dim_v() + 1) * sizeof(double); }

// Assumes that no row is computed again: which rows are depends on the values.
double bytes_moved(const Head& head) {
  const Splits splits(head);
  const auto states = static_cast<double>(splits.count() * head.len_q());
  return split_bytes(head, splits) + states * 2 * state_bytes(head) +
         static_cast<double>(head.len_q()) * head.row_bytes_out();
}

// False for NaN.
bool in_range(float score) { return score - kPhi > kLow && score - kPhi < kHigh; }

// The step of one split for query i. False where the row must be computed again.
bool unified_step(const Head& head, int64_t i, float* p, int64_t j0, int64_t j1, const float* v, double* o, double& l) {
  const int64_t keys = j1 - j0, dim = head.head_dim_v();
  head.scores(i, j0, j1, p);
  for (int64_t j = 0; j < keys; ++j) {
    if (p[j] != kHidden<float> && !in_range(p[j])) return false;
  }
  for (int64_t j = 0; j < keys; ++j) l += static_cast<double>(p[j] = std::exp(p[j] - kPhi));
  head.dropout_row(i, j0, j1, p);
  for (int64_t j = 0; j < keys; ++j) {
    if (p[j] == 0) continue;  // a hidden key's memory may hold anything
    for (int64_t c = 0; c < dim; ++c) o[c] += static_cast<double>(p[j]) * static_cast<double>(v[j * dim + c]);
  }
  return true;
}

// Row i by its maximum, over all keys.
void run_again(const Head& head, ScoreTile& tile, int64_t i, float* o) {
  const int64_t dim = head.head_dim_v();
  float l = first_sum(head), m = first_maximum(head);
  std::fill(o, o + dim, 0.0F);
  tile.load_queries(i, i + 1);
  tile.for_each_row(0, head.len_kv(), [&](int64_t, float* products, int64_t j0, int64_t j1, const float* v) {
    online_step(head, i, products, j0, j1, v, o, l, m);
  });
  const float lse = finish_row(dim, o, l, m);
  head.store(i, o, lse);
}

void run(const Head& head, float* scratch) {
  const int64_t tile_q = tiles(head).q, dim = head.head_dim_v(), rows = head.len_q();
  const Splits splits(head);
  const int64_t states = splits.count() * rows;
  auto* o = reinterpret_cast<double*>(scratch);                // [splits][len_q][head_dim_v]
  double* l = o + states * dim;                                // [splits][len_q]
  float* held = scratch + 2 * kMostSplits * rows * (dim + 1);  // [len_q]: 0 where the row must be computed again
  float* out = held + rows;                                    // [head_dim_v]
  ScoreTile tile(head, out + dim);

  const bool sink_held = head.sink() == kHidden<float> || in_range(head.sink());
  std::fill(held, held + rows, sink_held ? 1.0F : 0.0F);
  std::fill(o, o + states * dim, 0.0);
  std::fill(l, l + states, 0.0);
  for (int64_t split = 0; split < splits.count(); ++split) {
    for (int64_t i0 = 0; i0 < rows; i0 += tile_q) {
      const int64_t i1 = std::min(i0 + tile_q, rows), first = split * rows + i0;
      tile.load_queries(i0, i1);
      tile.for_each_row(splits.begin(split), splits.end(split),
                        [&](int64_t r, float* products, int64_t j0, int64_t j1, const float* v) {
                          if (held[i0 + r] == 0) return;
                          const int64_t state = first + r;
                          if (!unified_step(head, i0 + r, products, j0, j1, v, o + state * dim, l[state]))
                            held[i0 + r] = 0;
                        });
      head.moved(static_cast<double>(i1 - i0) * state_bytes(head));
    }
  }
  for (int64_t i = 0; i < rows; ++i) {
    head.moved(static_cast<double>(splits.count()) * state_bytes(head));
    if (held[i] == 0) {
      run_again(head, tile, i, out);
      continue;
    }
    double sum = head.sink() == kHidden<float> ? 0 : std::exp(static_cast<double>(head.sink() - kPhi));
    for (int64_t split = 0; split < splits.count(); ++split) sum += l[split * rows + i];
    for (int64_t c = 0; c < dim; ++c) {
      double value = 0;
      for (int64_t split = 0; split < splits.count(); ++split) value += o[(split * rows + i) * dim + c];
      out[c] = sum == 0 ? 0.0F : static_cast<float>(value / sum);
    }
    head.store(i, out, sum == 0 ? kHidden<float> : static_cast<float>(static_cast<double>(kPhi) + std::log(sum)));
  }
}

}  // namespace

const Algorithm kFlashDecodingPp = {"reference.flash_decoding_pp",
                                    "FlashDecoding++: keys split, one maximum for all, rows out of its range again",
                                    1,
                                    scratch_floats,
                                    bytes_moved,
                                    run};

}  // namespace tessella::reference
