// FlashAttention-2 (arXiv 2307.08691, algorithm 1). For each tile Q_i outside, over tiles K_j, V_j inside:
//   S = mask(score(Q_i K_j^T)),  m_new = max(m, rowmax(S)),  P~ = exp(S - m_new)
//   l <- e^{m - m_new} l + rowsum(P~),   O <- e^{m - m_new} O + dropout(P~) V_j          (O stays unscaled)
// and at the end O_i = O / l, L_i = m + log l; L is all that is kept for the backward.
// The paper prints the factor of O as diag(e^{m - m_new})^{-1}; it is the factor itself, at most 1.

#include <algorithm>
#include <cmath>

#include "operations/attention/shape.hpp"
#include "reference/ladder/score_tile.hpp"

namespace tessella::reference {

void online_step(const Head& head, int64_t i, float* p, int64_t j0, int64_t j1, const float* v, float* o, float& l,
                 float& m) {
  const int64_t keys = j1 - j0, dim = head.head_dim_v();
  head.scores(i, j0, j1, p);
  float m_new = m;
  for (int64_t j = 0; j < keys; ++j) m_new = std::max(m_new, p[j]);
  if (m_new == kHidden<float> && all_hidden(p, keys)) return;  // nothing seen yet: e^{-inf - -inf} is NaN
  const float rescale = std::exp(m - m_new);
  float sum = 0;
  for (int64_t j = 0; j < keys; ++j) sum += p[j] = std::exp(p[j] - m_new);
  l = rescale * l + sum;
  m = m_new;
  head.dropout_row(i, j0, j1, p);
  for (int64_t c = 0; c < dim; ++c) o[c] *= rescale;
  weighted_sum(dim, keys, p, v, o);
}

float finish_row(int64_t dim, float* o, float l, float m) {
  const float scale = l == 0 ? 0 : 1 / l;
  for (int64_t c = 0; c < dim; ++c) o[c] *= scale;
  return log_sum(m, l);
}

namespace {

int64_t scratch_floats(const core::AttentionShape& p) { return ScoreTile::floats(p) + tiles(p).q * (p.head_dim_v + 2); }

double bytes_moved(const Head& head) {
  double bytes = static_cast<double>(head.len_q()) * (head.row_bytes_qk() + head.row_bytes_out());
  for (int64_t i = 0; i < head.len_q(); i += tiles(head).q) {
    bytes += tile_bytes(head, i, std::min(i + tiles(head).q, head.len_q()), 0, head.len_kv());
  }
  return bytes;
}

void run(const Head& head, float* scratch) {
  const int64_t tile_q = tiles(head).q, dim = head.head_dim_v();
  ScoreTile tile(head, scratch);
  float* o = tile.rest();       // [tile_q][head_dim_v]
  float* l = o + tile_q * dim;  // [tile_q]
  float* m = l + tile_q;        // [tile_q]

  for (int64_t i0 = 0; i0 < head.len_q(); i0 += tile_q) {
    const int64_t i1 = std::min(i0 + tile_q, head.len_q());
    tile.load_queries(i0, i1);
    std::fill(o, o + tile_q * dim, 0.0F);
    std::fill(l, l + tile_q, first_sum(head));
    std::fill(m, m + tile_q, first_maximum(head));
    tile.for_each_row(0, head.len_kv(), [&](int64_t r, float* products, int64_t j0, int64_t j1, const float* v) {
      online_step(head, i0 + r, products, j0, j1, v, o + r * dim, l[r], m[r]);
    });
    for (int64_t r = 0; r < i1 - i0; ++r) {
      const float lse = finish_row(dim, o + r * dim, l[r], m[r]);
      head.store(i0 + r, o + r * dim, lse);
    }
  }
}

}  // namespace

const Algorithm kFlash2 = {"reference.flash_2",
                           "FlashAttention-2: Q outside, O unscaled, only the LSE kept",
                           1,
                           scratch_floats,
                           bytes_moved,
                           run};

}  // namespace tessella::reference
