// FlashAttention (arXiv 2205.14135, algorithms 1 and 2). O = 0, l = 0, m = -inf in memory; tiles K_j, V_j outside,
// tiles Q_i inside:
//   S = mask(score(Q_i K_j^T)),  m~ = rowmax(S),  P~ = exp(S - m~),  l~ = rowsum(P~)
//   m_new = max(m_i, m~),        l_new = e^{m_i - m_new} l_i + e^{m~ - m_new} l~
//   O_i <- ( l_i e^{m_i - m_new} O_i + e^{m~ - m_new} dropout(P~) V_j ) / l_new
// K and V are read once; O_i, l_i, m_i go to memory and back at every visit. O is kept there in fp32 (extra memory
// linear in N): 16-bit outputs would be rounded at every visit.

#include <algorithm>
#include <cmath>

#include "operations/attention/shape.hpp"
#include "reference/ladder/ladder.hpp"
#include "reference/ladder/vector.hpp"

namespace tessella::reference {
namespace {

int64_t scratch_floats(const core::AttentionShape& p) {
  const Tiles tile = tiles(p);
  return p.seqlen_q * (p.head_dim_v + 2) + p.head_dim_qk + tile.kv * (p.head_dim_qk + p.head_dim_v) +
         tile.q * (p.head_dim_qk + tile.kv) + p.head_dim_v;
}

double state_bytes(const Head& head) { return static_cast<double>(head.head_dim_v() + 2) * sizeof(float); }

double bytes_moved(const Head& head) {
  const Tiles tile = tiles(head);
  // O, l, m set at the start and read for the result.
  double bytes = static_cast<double>(head.len_q()) * (2 * state_bytes(head) + head.row_bytes_out());
  bytes += static_cast<double>(head.len_kv()) * (head.row_bytes_qk() + head.row_bytes_v());
  for (int64_t j = 0; j < head.len_kv(); j += tile.kv) {
    for (int64_t i = 0; i < head.len_q(); i += tile.q) {
      const int64_t i_end = std::min(i + tile.q, head.len_q());
      if (!head.meets_band(i, i_end, j, std::min(j + tile.kv, head.len_kv()))) continue;
      bytes += static_cast<double>(i_end - i) * (head.row_bytes_qk() + 2 * state_bytes(head));
    }
  }
  return bytes;
}

void run(const Head& head, float* scratch) {
  const Tiles tile = tiles(head);
  const int64_t dim = head.head_dim_v();
  float* o = scratch;                        // [len_q][head_dim_v]
  float* l = o + head.len_q() * dim;         // [len_q]
  float* m = l + head.len_q();               // [len_q]
  float* row = m + head.len_q();             // [head_dim_qk]
  float* k_tile = row + head.head_dim_qk();  // [head_dim_qk][tile.kv]
  float* v_tile = k_tile + head.head_dim_qk() * tile.kv;
  float* q_tile = v_tile + tile.kv * dim;                // [tile.q][head_dim_qk]
  float* s_tile = q_tile + tile.q * head.head_dim_qk();  // [tile.q][tile.kv], then P~
  float* pv = s_tile + tile.q * tile.kv;                 // [head_dim_v]

  std::fill(o, o + head.len_q() * dim, 0.0F);
  std::fill(l, l + head.len_q(), first_sum(head));
  std::fill(m, m + head.len_q(), first_maximum(head));
  head.moved(static_cast<double>(head.len_q()) * state_bytes(head));

  for (int64_t j0 = 0; j0 < head.len_kv(); j0 += tile.kv) {
    const int64_t j1 = std::min(j0 + tile.kv, head.len_kv());
    const int64_t keys = j1 - j0;
    head.load_k_transposed(j0, j1, row, k_tile);
    for (int64_t j = j0; j < j1; ++j) head.load_v(j, v_tile + (j - j0) * dim);

    for (int64_t i0 = 0; i0 < head.len_q(); i0 += tile.q) {
      const int64_t i1 = std::min(i0 + tile.q, head.len_q());
      if (!head.meets_band(i0, i1, j0, j1)) continue;
      for (int64_t i = i0; i < i1; ++i) head.load_q(i, q_tile + (i - i0) * head.head_dim_qk());
      std::fill(s_tile, s_tile + (i1 - i0) * keys, 0.0F);
      multiply_add(i1 - i0, keys, head.head_dim_qk(), q_tile, k_tile, s_tile, keys);

      for (int64_t i = i0; i < i1; ++i) {
        float* p = s_tile + (i - i0) * keys;
        head.scores(i, j0, j1, p);
        head.moved(2 * state_bytes(head));
        float m_tile = kHidden<float>;
        for (int64_t j = 0; j < keys; ++j) m_tile = std::max(m_tile, p[j]);
        // A row that sees no key of the tile keeps its state: e^{-inf - -inf} is NaN.
        if (m_tile == kHidden<float> && all_hidden(p, keys)) continue;
        float l_tile = 0;
        for (int64_t j = 0; j < keys; ++j) l_tile += p[j] = std::exp(p[j] - m_tile);
        head.dropout_row(i, j0, j1, p);
        std::fill(pv, pv + dim, 0.0F);
        weighted_sum(dim, keys, p, v_tile, pv);

        const float m_new = std::max(m[i], m_tile);
        const float old_weight = std::exp(m[i] - m_new) * l[i];
        const float tile_weight = std::exp(m_tile - m_new);
        const float l_new = old_weight + tile_weight * l_tile;
        float* o_row = o + i * dim;
        for (int64_t c = 0; c < dim; ++c) o_row[c] = (old_weight * o_row[c] + tile_weight * pv[c]) / l_new;
        l[i] = l_new;
        m[i] = m_new;
      }
    }
  }
  for (int64_t i = 0; i < head.len_q(); ++i) head.store(i, o + i * dim, log_sum(m[i], l[i]));
  head.moved(static_cast<double>(head.len_q()) * state_bytes(head));
}

}  // namespace

const Algorithm kFlash1 = {"reference.flash_1",
                           "FlashAttention-1: K, V outside; O, l, m rescaled in memory",
                           1,
                           scratch_floats,
                           bytes_moved,
                           run};

}  // namespace tessella::reference
