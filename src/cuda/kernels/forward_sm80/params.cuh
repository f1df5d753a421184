// The configuration of forward_sm80 and its layout of shared memory.
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

// Shared memory: tiles of q, k and v; begin and end of each row's keys; of a tile what each warp and what each lane
// sees; what the block works on.
template <class Config>
constexpr int32_t tile_bytes(const Config& c) {
  return (c.tile_q * c.head_dim_qk + c.tile_kv * (c.head_dim_qk + c.head_dim_v)) * size_bytes(c.score.elements.q);
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

// Registers of a lane that hold scores and output.
constexpr int32_t accumulators(const ForwardSm80Config& c) {
  return c.tile_q / c.num_warps / 16 * (c.tile_kv + c.head_dim_v) / 2;
}
// Nothing but a band changes scores, and rows are copied in whole panels.
constexpr bool is_plain(const ForwardSm80Config& c) {
  const ScoreConfig& score = c.score;
  const bool changes_scores = score.softcap || score.alibi || score.bias || score.score_mod;
  return !changes_scores && score.mask == MaskLevel::band && c.vector_loads && c.head_dim_qk == c.head_dim_v &&
         c.head_dim_qk % 64 == 0;
}
// A score modification in longer tiles, which run where its source leaves registers (for_small_source()).
constexpr bool has_small_source(const ForwardSm80Config& c) { return c.score.score_mod && accumulators(c) > 176; }

// How tiles are copied. All kernels but the plain ones are short of registers; with these choices the assembler spills
// none (tests/gpu/kernel_matrix_test.cpp).
struct CopyStyle {
  bool few_at_once = false;      // four copies have their addresses in registers, else all of a tile
  bool loops_at_ends = false;    // a loop copies rows at a sequence's ends, where each row is tested
  bool keeps_addresses = false;  // of copies in shared memory
};
constexpr CopyStyle copy_style(const ForwardSm80Config& c) {
  const ScoreConfig& score = c.score;
  const bool changes_scores = score.softcap || score.alibi || score.bias || score.score_mod;
  const bool is_heavy = score.bias || score.dropout;
  const bool is_wide_or_odd = c.head_dim_qk % 64 != 0 || c.head_dim_v > 128;
  CopyStyle style;
  style.few_at_once = score.elements.q == Element::f32 || score.alibi || score.score_mod || c.paged ||
                      (is_heavy && is_wide_or_odd) ||
                      (!changes_scores && score.mask == MaskLevel::band && !is_plain(c));
  style.loops_at_ends = is_plain(c) && c.head_dim_qk > 128;  // unrolled, these were a third of the loop over keys
  style.keeps_addresses =
      score.mask == MaskLevel::band && (!score.score_mod || has_small_source(c)) && (!is_heavy || is_wide_or_odd);
  return style;
}

}  // namespace tessella::portable
