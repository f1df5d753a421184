// The configuration and parameters of backward_sm90's kernels, and their layouts of shared memory.
#pragma once

#include "portable/backward_params.hpp"
#include "portable/hopper.hpp"

namespace tessella::portable {

struct BackwardSm90Config {
  ScoreConfig score;
  int32_t head_dim_qk = 0;  // as compiled: the copy engine pads with zeros
  int32_t head_dim_v = 0;
  bool apart = false;  // a kernel of dK and dV and one of dQ; else one of all three, for equal head dims to 128
  bool operator==(const BackwardSm90Config&) const = default;
};

inline constexpr int32_t kBackwardTileQ = 64;
constexpr int32_t backward_tile_kv(const BackwardSm90Config& c) { return c.apart ? 64 : 128; }
inline constexpr int32_t kBackwardDqTileQ = 2 * kBackwardTileQ;  // of the kernel of dQ

inline constexpr int32_t kBackwardSm90Threads = 384;  // a warpgroup that loads, two that multiply

// Registers of a thread that loads and of one that multiplies; a multiprocessor has 65536. The loading warp wants more
// than 24 to find its tiles by a tile map and where dQ is apart, and gets them where accumulators are narrow enough.
struct BackwardRegisters {
  int32_t load, multiply;
};
constexpr BackwardRegisters registers(const BackwardSm90Config& c) {
  const bool has_map = c.score.mask == MaskLevel::bits;
  const bool has_room = c.apart ? c.head_dim_qk <= 192 && c.head_dim_v <= 192 : has_map && c.head_dim_qk <= 64;
  return has_room ? BackwardRegisters{40, 232} : BackwardRegisters{24, 240};
}

struct BackwardSm90Params {
  TensorMap q, k, v, d_out;  // boxes of box_columns() and of 64 rows of q and d_out, a key tile of k and v
  BackwardParams backward;
};

// Positions in bytes; shared memory starts at a multiple of 1024. K and V | stages of q, d_out, rows of queries and a
// visit | two dS, or S if dQ is apart | two dQ | words by which a warp finds visits | where dK and dV go | bits of keys
// that some query sees | barriers.
struct BackwardSm90Layout {
  int32_t k_bytes, v_bytes, q_bytes, d_out_bytes, rows_bytes, dq_bytes, stages;
  int32_t v_at, q_at, d_out_at, scores_at, dq_at, rows_at, visits_at, words_at, key_rows_at, seen_at, barriers_at,
      bytes;
};
inline constexpr int32_t kVisitBytes = 16;
inline constexpr int32_t kBackwardAdders = 2;  // warps that add dQ to its sums in memory, of every other query tile

// Between rows of floats in shared memory, of which gradients are stored: 8 more spread them over the banks.
constexpr int32_t gradient_row_bytes(int32_t head_dim) { return (head_dim + 8) * 4; }

constexpr BackwardSm90Layout layout(const BackwardSm90Config& c) {
  const int32_t tile_kv = backward_tile_kv(c);
  BackwardSm90Layout l{};
  l.k_bytes = tile_kv * c.head_dim_qk * 2;
  l.v_bytes = tile_kv * c.head_dim_v * 2;
  l.q_bytes = kBackwardTileQ * c.head_dim_qk * 2;
  l.d_out_bytes = kBackwardTileQ * c.head_dim_v * 2;
  l.rows_bytes = kBackwardTileQ * static_cast<int32_t>(sizeof(BackwardRow));
  l.dq_bytes = c.apart ? 0 : kBackwardTileQ * c.head_dim_qk * 4;
  l.stages = 2;
  l.v_at = l.k_bytes;
  l.q_at = l.v_at + l.v_bytes;
  l.d_out_at = l.q_at + l.stages * l.q_bytes;
  l.scores_at = l.d_out_at + l.stages * l.d_out_bytes;
  l.dq_at = l.scores_at + kBackwardTileQ * tile_kv * (c.apart ? 4 : 2 * 2);
  l.rows_at = l.dq_at + kBackwardAdders * l.dq_bytes;
  l.visits_at = l.rows_at + l.stages * l.rows_bytes;
  l.words_at = l.visits_at + l.stages * kVisitBytes;
  l.key_rows_at = l.words_at + kBackwardWords * 4;
  l.seen_at = l.key_rows_at + 16;
  l.barriers_at = l.seen_at + 16;
  l.bytes = l.barriers_at + kBarrierBytes * (1 + l.stages + (c.apart ? 1 : kBackwardAdders));
  return l;
}

// Shared memory of the kernel of dQ: Q and d_out of both warpgroups | slots of K | of V | rows of queries | a
// visit for each slot of K | barriers.
struct BackwardDqLayout {
  int32_t q_bytes, d_out_bytes, rows_bytes, k_bytes, v_bytes, k_slots, v_slots;  // the first three: of a warpgroup
  int32_t d_out_at, k_at, v_at, rows_at, visits_at, barriers_at, bytes;
};

constexpr BackwardDqLayout dq_layout(const BackwardSm90Config& c) {
  BackwardDqLayout l{};
  l.q_bytes = l.k_bytes = kBackwardTileQ * c.head_dim_qk * 2;
  l.d_out_bytes = l.v_bytes = kBackwardTileQ * c.head_dim_v * 2;
  l.rows_bytes = kBackwardTileQ * static_cast<int32_t>(sizeof(BackwardRow));
  l.k_slots = 2;
  l.v_slots = c.head_dim_qk + c.head_dim_v > 448 ? 1 : 2;
  l.d_out_at = 2 * l.q_bytes;
  l.k_at = l.d_out_at + 2 * l.d_out_bytes;
  l.v_at = l.k_at + l.k_slots * l.k_bytes;
  l.rows_at = l.v_at + l.v_slots * l.v_bytes;
  l.visits_at = l.rows_at + 2 * l.rows_bytes;
  l.barriers_at = l.visits_at + l.k_slots * kVisitBytes;
  l.bytes = l.barriers_at + kBarrierBytes * (1 + l.k_slots + l.v_slots);
  return l;
}

}  // namespace tessella::portable
