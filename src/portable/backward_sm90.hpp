// The configuration and parameters of backward_sm90, and its layout of shared memory.
#pragma once

#include "portable/backward_params.hpp"
#include "portable/forward_sm90.hpp"

namespace tessella::portable {

struct BackwardSm90Config {
  ScoreConfig score;
  int32_t head_dim = 0;  // of q, k and v, as compiled: the copy engine pads with zeros
  bool operator==(const BackwardSm90Config&) const = default;
};

template <class Visit>
constexpr void fields(const BackwardSm90Config& c, const Visit& visit) {
  visit("score", c.score);
  visit("head_dim", c.head_dim);
}

inline constexpr int32_t kBackwardTileQ = 64, kBackwardTileKv = 128;
inline constexpr int32_t kBackwardSm90Threads = 384;  // a warpgroup that loads, two that multiply

struct BackwardSm90Params {
  TensorMap q, k, v, d_out;  // boxes of 64 columns and of 64 rows of q and d_out, 128 of k and v
  BackwardParams backward;
};

// Positions in bytes; shared memory starts at a multiple of 1024. K and V | stages of q, d_out, rows of queries and a
// visit | two dS | two dQ | words by which a warp finds visits | where dK and dV go | barriers.
struct BackwardSm90Layout {
  int32_t k_bytes, q_bytes, rows_bytes, dq_bytes, stages;
  int32_t v_at, q_at, d_out_at, d_scores_at, dq_at, rows_at, visits_at, words_at, key_rows_at, barriers_at, bytes;
};
inline constexpr int32_t kVisitBytes = 16;
inline constexpr int32_t kBackwardAdders = 2;  // warps that add dQ to its sums in memory, of every other query tile

// Between rows of floats in shared memory, of which gradients are stored: 8 more spread them over the banks.
constexpr int32_t gradient_row_bytes(const BackwardSm90Config& c) { return (c.head_dim + 8) * 4; }

constexpr BackwardSm90Layout layout(const BackwardSm90Config& c) {
  BackwardSm90Layout l{};
  l.k_bytes = kBackwardTileKv * c.head_dim * 2;
  l.q_bytes = kBackwardTileQ * c.head_dim * 2;
  l.rows_bytes = kBackwardTileQ * static_cast<int32_t>(sizeof(BackwardRow));
  l.dq_bytes = kBackwardTileQ * c.head_dim * 4;
  l.stages = 2;
  l.v_at = l.k_bytes;
  l.q_at = l.v_at + l.k_bytes;
  l.d_out_at = l.q_at + l.stages * l.q_bytes;
  l.d_scores_at = l.d_out_at + l.stages * l.q_bytes;
  l.dq_at = l.d_scores_at + 2 * kBackwardTileQ * kBackwardTileKv * 2;
  l.rows_at = l.dq_at + kBackwardAdders * l.dq_bytes;
  l.visits_at = l.rows_at + l.stages * l.rows_bytes;
  l.words_at = l.visits_at + l.stages * kVisitBytes;
  l.key_rows_at = l.words_at + kBackwardWords * 4;
  l.barriers_at = l.key_rows_at + 16;
  l.bytes = l.barriers_at + kBarrierBytes * 2 * (1 + l.stages + kBackwardAdders);
  return l;
}

}  // namespace tessella::portable
