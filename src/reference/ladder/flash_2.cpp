// FlashAttention-2 (arXiv 2307.08691, algorithm 1). For each tile Q_i outside, over tiles K_j, V_j inside:
//   S = mask(score(Q_i K_j^T)),  m_new = max(m, rowmax(S)),  P~ = exp(S - m_new)
//   l <- e^{m - m_new} l + rowsum(P~),   O <- e^{m - m_new} O + dropout(P~) V_j          (O stays unscaled)
// and at the end O_i = O / l, L_i = m + log l; L is all that is kept for the backward.
// The paper prints the factor of O as diag(e^{m - m_new})^{-1}; it is the factor itself, at most 1.

#include <algorithm>
#include <cmath>

#include "reference/ladder/ladder.hpp"
#include "reference/ladder/vector.hpp"

namespace tessella::reference {
namespace {

int64_t scratch_floats(const core::AttentionShape& p) {
  const Tiles tile = tiles(p);
  return p.head_dim_qk + tile.kv * (p.head_dim_qk + p.head_dim_v) +
         tile.q * (p.head_dim_qk + p.head_dim_v + tile.kv + 2);
}

double bytes_moved(const Head& head) {
  const Tiles tile = tiles(head);
  double bytes = static_cast<double>(head.len_q()) * (head.row_bytes_qk() + head.row_bytes_out());
  for (int64_t i = 0; i < head.len_q(); i += tile.q) {
    for (int64_t j = 0; j < head.len_kv(); j += tile.kv) {
      const int64_t j_end = std::min(j + tile.kv, head.len_kv());
      if (!head.meets_band(i, std::min(i + tile.q, head.len_q()), j, j_end)) continue;
      bytes += static_cast<double>(j_end - j) * (head.row_bytes_qk() + head.row_bytes_v());
    }
  }
  return bytes;
}

void run(const Head& head, float* scratch) {
  const Tiles tile = tiles(head);
  const int64_t dim = head.head_dim_v();
  float* row = scratch;                      // [head_dim_qk]
  float* k_tile = row + head.head_dim_qk();  // [head_dim_qk][tile.kv]
  float* v_tile = k_tile + head.head_dim_qk() * tile.kv;
  float* q_tile = v_tile + tile.kv * dim;                // [tile.q][head_dim_qk]
  float* o_tile = q_tile + tile.q * head.head_dim_qk();  // [tile.q][head_dim_v]
  float* s_tile = o_tile + tile.q * dim;                 // [tile.q][tile.kv], then P~
  float* l = s_tile + tile.q * tile.kv;                  // [tile.q]
  float* m = l + tile.q;                                 // [tile.q]

  for (int64_t i0 = 0; i0 < head.len_q(); i0 += tile.q) {
    const int64_t i1 = std::min(i0 + tile.q, head.len_q());
    for (int64_t i = i0; i < i1; ++i) head.load_q(i, q_tile + (i - i0) * head.head_dim_qk());
    std::fill(o_tile, o_tile + tile.q * dim, 0.0F);
    std::fill(l, l + tile.q, first_sum(head));
    std::fill(m, m + tile.q, first_maximum(head));

    for (int64_t j0 = 0; j0 < head.len_kv(); j0 += tile.kv) {
      const int64_t j1 = std::min(j0 + tile.kv, head.len_kv());
      const int64_t keys = j1 - j0;
      if (!head.meets_band(i0, i1, j0, j1)) continue;
      head.load_k_transposed(j0, j1, row, k_tile);
      for (int64_t j = j0; j < j1; ++j) head.load_v(j, v_tile + (j - j0) * dim);
      std::fill(s_tile, s_tile + (i1 - i0) * keys, 0.0F);
      multiply_add(i1 - i0, keys, head.head_dim_qk(), q_tile, k_tile, s_tile, keys);

      for (int64_t r = 0; r < i1 - i0; ++r) {
        float* p = s_tile + r * keys;
        float* o = o_tile + r * dim;
        head.scores(i0 + r, j0, j1, p);
        float m_new = m[r];
        for (int64_t j = 0; j < keys; ++j) m_new = std::max(m_new, p[j]);
        if (m_new == kHidden<float> && all_hidden(p, keys)) continue;  // nothing seen yet: e^{-inf - -inf} is NaN
        const float rescale = std::exp(m[r] - m_new);
        float sum = 0;
        for (int64_t j = 0; j < keys; ++j) sum += p[j] = std::exp(p[j] - m_new);
        l[r] = rescale * l[r] + sum;
        m[r] = m_new;
        head.dropout_row(i0 + r, j0, j1, p);
        for (int64_t c = 0; c < dim; ++c) o[c] *= rescale;
        weighted_sum(dim, keys, p, v_tile, o);
      }
    }
    for (int64_t r = 0; r < i1 - i0; ++r) {
      float* o = o_tile + r * dim;
      const float scale = l[r] == 0 ? 0 : 1 / l[r];
      for (int64_t c = 0; c < dim; ++c) o[c] *= scale;
      head.store(i0 + r, o, log_sum(m[r], l[r]));
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
