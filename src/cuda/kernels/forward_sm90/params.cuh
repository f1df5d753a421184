// The configuration and parameters of forward_sm90, and its layout of shared memory.
#pragma once

#include "portable/forward_params.hpp"
#include "portable/hopper.hpp"
#include "portable/score_config.hpp"

namespace tessella::portable {

struct ForwardSm90Config {
  ScoreConfig score;
  int32_t head_dim_qk = 0;  // as compiled: the copy engine pads with zeros
  int32_t head_dim_v = 0;
  int32_t tile_q = 0;
  int32_t tile_kv = 0;
  bool paged = false;  // k and v
  KeyScales scales = KeyScales::none;
  bool operator==(const ForwardSm90Config&) const = default;
};

struct ForwardSm90Params {
  // (head_dim, row, head, batch); boxes of box_columns() and of 64 rows of q, box_kv of k and v, 16 of out, whose map
  // holds something only if out has 16 bits and rows that the engine can write (out_vector_store). v of 8 bits is
  // transposed (portable/transpose_v.hpp): (key, head_dim, head, batch), a box has all head dims.
  TensorMap q, k, v, out;
  ForwardParams forward;
  uint32_t* counter;        // of query tiles that blocks have taken beyond their first; zero before and after
  int32_t num_query_tiles;  // those of all heads
  int32_t box_kv;  // keys of a box of k and v: a tile; if paged, the most that fit one page at every tile's start
  int32_t may_have_zero_rows;  // 1 if some row of out may need no product
  // Of q, k and v of 8 bits: f32, (batch or page, rows / scale_block, head); data null: all are 1.
  OperandParams q_scale, k_scale, v_scale;
  Divisor scale_block;  // 0: one factor for all rows
};

// Sizes and positions in bytes; shared memory starts at a multiple of 1024. Columns are padded to panels of 64. A slot
// of q, a stage of k and one of v each hold a tile, that of q as 64 rows for each warpgroup. With element masks each
// stage of k, and then each of v, has a summary; with scales, the factors of its keys.
struct ForwardSm90Layout {
  int32_t q_bytes, k_bytes, v_bytes, query_tile_bytes, scale_bytes;
  int32_t q_slots, k_stages, v_stages, query_tile_slots;
  int32_t k_at, v_at, query_tiles_at, bounds_at, summaries_at, scales_at, barriers_at;
  int32_t bytes;
};

inline constexpr int32_t kWarpgroupRows = 64;  // of the tile of queries, and of a box of q
inline constexpr int32_t kWarpRows = 16;       // of a warp, and of a box of out
inline constexpr int32_t kSummaryBytes = 16;   // a loader's summary of a tile
inline constexpr int32_t kQueryTileFills = 3;  // of a slot of query tiles, each with a barrier; one more when empty

// Threads of a block: one warpgroup that loads, and those that multiply.
constexpr int32_t num_threads(const ForwardSm90Config& c) { return 128 * (1 + c.tile_q / kWarpgroupRows); }

// The matrix unit takes 8-bit operands with the summed axis contiguous alone, which of v are keys.
constexpr bool is_transposed_v(const ForwardSm90Config& c) { return bits_of(c.score.elements.kv) == 8; }

// Columns of v that an 8-bit kernel multiplies at once: beside out, scores and probabilities registers hold their
// products too.
constexpr int32_t columns_at_once(const ForwardSm90Config& c) { return c.head_dim_v % 64 == 0 ? 64 : c.head_dim_v; }

// Queries lie in registers where two warpgroups have enough for them beside o, s and p: the matrix unit then reads a
// third less of shared memory. Score modifications, bias, dropout and several masks may need those registers.
constexpr bool holds_queries(const ForwardSm90Config& c) {
  return bits_of(c.score.elements.q) == 16 && c.tile_q == 2 * kWarpgroupRows && c.head_dim_qk == 128 &&
         c.head_dim_v == 128 && !c.score.score_mod && !c.score.bias && !c.score.dropout && num_masks(c.score) <= 1;
}

constexpr ForwardSm90Layout forward_sm90_layout(const ForwardSm90Config& c) {
  const int32_t in_panel = box_columns(c.score.elements.q);
  const auto panels = [in_panel](int32_t columns) { return (columns + in_panel - 1) / in_panel * 128; };
  ForwardSm90Layout layout{};
  layout.q_bytes = c.tile_q * panels(c.head_dim_qk);
  layout.k_bytes = c.tile_kv * panels(c.head_dim_qk);
  layout.v_bytes = is_transposed_v(c) ? c.head_dim_v * c.tile_kv : c.tile_kv * panels(c.head_dim_v);
  layout.scale_bytes = c.scales == KeyScales::key ? c.tile_kv * 4 : c.scales == KeyScales::tile ? 16 : 0;
  // A slot's address by a shift, unless summaries need the room.
  layout.query_tile_bytes = c.score.mask == MaskLevel::bits ? 208 : 256;
  const auto arrange = [&] {
    const int32_t warpgroups = c.tile_q / kWarpgroupRows;
    layout.k_at = layout.q_slots * layout.q_bytes;
    layout.v_at = layout.k_at + layout.k_stages * layout.k_bytes;
    layout.query_tiles_at = layout.v_at + layout.v_stages * layout.v_bytes;
    layout.bounds_at =
        layout.query_tiles_at + (layout.query_tile_slots + 1) * layout.query_tile_bytes;  // one for warp 1
    layout.summaries_at = layout.bounds_at + layout.query_tile_slots * c.tile_q * 8;
    layout.scales_at = layout.summaries_at;
    if (c.score.mask == MaskLevel::bits) layout.scales_at += (layout.k_stages + layout.v_stages) * kSummaryBytes;
    layout.barriers_at = layout.scales_at + (layout.k_stages + layout.v_stages) * layout.scale_bytes;
    layout.bytes = layout.barriers_at + (kQueryTileFills + 1) * 8 * layout.query_tile_slots +
                   kBarrierBytes * (warpgroups * layout.q_slots + layout.k_stages + layout.v_stages);
    return layout.bytes <= kHopperSharedBytes;
  };
  const auto grow = [&](int32_t& slots, int32_t most) {
    if (slots >= most) return false;
    ++slots;
    if (arrange()) return true;
    --slots;
    arrange();
    return false;
  };
  // Two stages of each first, then a second slot of q, which lets the next tile begin early, then more stages.
  layout.q_slots = 1;
  layout.k_stages = layout.v_stages = layout.query_tile_slots = 2;
  grow(layout.q_slots, 2);
  while (grow(layout.k_stages, 4) && grow(layout.v_stages, 4)) {
  }
  grow(layout.query_tile_slots, 3);
  return layout;
}

}  // namespace tessella::portable
