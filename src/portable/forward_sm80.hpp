// What forward_sm80 is compiled for and how it lays out shared memory.
#pragma once

#include "portable/score_config.hpp"

namespace tessella::portable {

struct ForwardSm80Config {
  ScoreConfig score;
  int32_t head_dim_qk = 0;  // as compiled: rows are padded to it with zeros
  int32_t head_dim_v = 0;   // columns of v that one thread block computes
  int32_t tile_q = 0;
  int32_t tile_kv = 0;
  int32_t num_warps = 0;
  int32_t blocks_per_sm = 1;  // resident at once: bounds the registers
  bool vector_loads = true;   // rows of q, k and v start at multiples of 16 bytes and hold whole 16-byte chunks
  bool paged = false;         // k and v
  bool operator==(const ForwardSm80Config&) const = default;
};

template <class Visit>
constexpr void fields(const ForwardSm80Config& c, const Visit& visit) {
  visit("score", c.score);
  visit("head_dim_qk", c.head_dim_qk);
  visit("head_dim_v", c.head_dim_v);
  visit("tile_q", c.tile_q);
  visit("tile_kv", c.tile_kv);
  visit("num_warps", c.num_warps);
  visit("blocks_per_sm", c.blocks_per_sm);
  visit("vector_loads", c.vector_loads);
  visit("paged", c.paged);
}

// Shared memory: tiles of q, k and v; begin and end of each row's keys; of a tile what each warp and what each lane
// sees; what the block works on.
template <class Config>
constexpr int32_t tile_bytes(const Config& c) {
  return (c.tile_q * c.head_dim_qk + c.tile_kv * (c.head_dim_qk + c.head_dim_v)) * size_bytes(c.score.element);
}
inline constexpr int32_t kQueryTileBytes = 512;
// Words of 32 keys that hold what a warp sees of a partial tile.
constexpr int32_t mask_words(const ForwardSm80Config& c) {
  return c.score.mask == MaskLevel::bits ? (c.tile_kv + 31) / 32 : 0;
}
constexpr int32_t seen_bytes(const ForwardSm80Config& c) {
  return c.score.mask == MaskLevel::bits ? c.num_warps * 16 : 0;
}
// A word for each of a lane's rows.
constexpr int32_t visible_bytes(const ForwardSm80Config& c) {
  return c.score.mask == MaskLevel::bits ? c.tile_q * 16 : 0;
}
constexpr int32_t shared_bytes(const ForwardSm80Config& c) {
  return tile_bytes(c) + c.tile_q * 8 + seen_bytes(c) + visible_bytes(c) + kQueryTileBytes;
}

}  // namespace tessella::portable
