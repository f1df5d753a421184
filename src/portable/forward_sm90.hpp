// What forward_sm90 is compiled for, what it is launched with, and how it lays out shared memory.
#pragma once

#include "portable/forward_params.hpp"
#include "portable/score_config.hpp"

namespace tessella::portable {

struct ForwardSm90Config {
  ScoreConfig score;
  int32_t head_dim_qk = 0;  // as compiled: the copy engine pads with zeros
  int32_t head_dim_v = 0;
  int32_t tile_q = 0;
  int32_t tile_kv = 0;
  int32_t cluster = 1;       // blocks that load keys for each other: neighbouring query tiles, which see the same
  bool paged = false;        // k and v
  bool scales_q = false;     // with a softcap's two terms: q times a power of two, for squares that saturate at 1
  bool by_distance = false;  // the score modification asks for q_minus_k
  bool operator==(const ForwardSm90Config&) const = default;
};

template <class Visit>
constexpr void fields(const ForwardSm90Config& c, const Visit& visit) {
  visit("score", c.score);
  visit("head_dim_qk", c.head_dim_qk);
  visit("head_dim_v", c.head_dim_v);
  visit("tile_q", c.tile_q);
  visit("tile_kv", c.tile_kv);
  visit("cluster", c.cluster);
  visit("paged", c.paged);
  visit("scales_q", c.scales_q);
  visit("by_distance", c.by_distance);
}

// How Hopper's copy engine walks a tensor (CUtensorMap).
struct alignas(128) TensorMap {
  uint64_t opaque[16];
};

struct ForwardSm90Params {
  // (head_dim, row, head, batch); boxes of 64 columns and of 64 rows of q, box_kv of k and v, 16 of out, whose map
  // holds something only if out has 16 bits and rows that the engine can write (out_vector_store).
  TensorMap q, k, v, out;
  ForwardParams forward;
  uint32_t* counter;  // of items that blocks have taken beyond their first; zero before and after; not for clusters
  int32_t num_items;  // tiles of queries, those of all heads
  int32_t box_kv;     // keys of a box of k and v: what a block loads of a tile; paged, as many of them as lie in one
                      // page wherever a tile begins
  int32_t may_have_zero_rows;  // 1 if some row of out may need no product
};

// Bytes, and places in bytes from the start of shared memory, which is a multiple of 1024. Columns are padded to panels
// of 64. A slot of q, a stage of k and one of v each hold a tile; that of q in parts of 64 rows, a warpgroup's each. A
// stage of v ends with a panel of ones where sums_by_product(). With element masks stages of k, and then those of v,
// have a note each.
struct ForwardSm90Layout {
  int32_t q_bytes, k_bytes, v_bytes, ones_bytes, item_bytes;
  int32_t q_slots, k_stages, v_stages, item_slots;
  int32_t k_at, v_at, items_at, bounds_at, notes_at, barriers_at;
  int32_t bytes;
};

inline constexpr int32_t kWarpgroupRows = 64;  // of the tile of queries, and of a box of q
inline constexpr int32_t kWarpRows = 16;       // of a warp, and of a box of out
inline constexpr int32_t kSwizzleRows = 8;     // after which the swizzle repeats: what boxes begin at multiples of
inline constexpr int32_t kNoteBytes = 16;      // what a loader says of a tile
inline constexpr int32_t kBarrierBytes = 16;   // of a slot or stage: when full, when empty
inline constexpr int32_t kHopperSharedBytes = 227 * 1024;
inline constexpr int32_t kHopperLongest = 1 << 29;  // queries or keys: sums of three fit in 32 bits

// Of a block: a warpgroup that loads, and those that multiply.
constexpr int32_t num_threads(const ForwardSm90Config& c) { return 128 * (1 + c.tile_q / kWarpgroupRows); }

// Queries lie in registers where two warpgroups have enough for all beside o, s and p: the matrix unit reads a third
// less of shared memory for their products then. Score modifications, bias, dropout and several masks may need those
// registers.
constexpr bool holds_queries(const ForwardSm90Config& c) {
  return c.tile_q == 2 * kWarpgroupRows && c.head_dim_qk == 128 && c.head_dim_v == 128 && !c.score.score_mod &&
         !c.score.bias && !c.score.dropout && num_masks(c.score) <= 1;
}

// Sums of rows are a product too, of probabilities and ones that lie behind each tile of v: an addition a score less.
// For a softcap's two terms in the tiles of long rows: nobody looks at sums there to see whether exponents served, and
// no LSE is asked for, for which a sum of rounded probabilities is too far off.
constexpr bool sums_by_product(const ForwardSm90Config& c) {
  return c.scales_q && c.tile_q == 3 * kWarpgroupRows && c.head_dim_v == 128 && c.score.mask == MaskLevel::band &&
         !c.score.dropout;
}

constexpr ForwardSm90Layout forward_sm90_layout(const ForwardSm90Config& c) {
  const auto panels = [](int32_t columns) { return (columns + 63) / 64 * 128; };
  ForwardSm90Layout layout{};
  layout.q_bytes = c.tile_q * panels(c.head_dim_qk);
  layout.k_bytes = c.tile_kv * panels(c.head_dim_qk);
  layout.v_bytes = c.tile_kv * panels(c.head_dim_v);
  layout.ones_bytes = sums_by_product(c) ? c.tile_kv * panels(1) : 0;
  layout.item_bytes =
      c.score.mask == MaskLevel::bits ? 208 : 256;  // a slot's place by a shift, unless notes need the room
  const auto place = [&] {
    const int32_t warpgroups = c.tile_q / kWarpgroupRows;
    layout.k_at = layout.q_slots * layout.q_bytes;
    layout.v_at = layout.k_at + layout.k_stages * layout.k_bytes;
    layout.items_at = layout.v_at + layout.v_stages * (layout.v_bytes + layout.ones_bytes);
    layout.bounds_at = layout.items_at + (layout.item_slots + 1) * layout.item_bytes;  // one is not handed on
    layout.notes_at = layout.bounds_at + layout.item_slots * c.tile_q * 8;
    layout.barriers_at = layout.notes_at;
    if (c.score.mask == MaskLevel::bits) layout.barriers_at += (layout.k_stages + layout.v_stages) * kNoteBytes;
    layout.bytes = layout.barriers_at + kBarrierBytes * (3 * layout.item_slots + warpgroups * layout.q_slots +
                                                         layout.k_stages + layout.v_stages);
    return layout.bytes <= kHopperSharedBytes;
  };
  const auto grow = [&](int32_t& slots, int32_t most) {
    if (slots >= most) return false;
    ++slots;
    if (place()) return true;
    --slots;
    place();
    return false;
  };
  // Two stages of each first, then a second slot of q, which lets the next tile begin early, then more stages.
  layout.q_slots = 1;
  layout.k_stages = layout.v_stages = layout.item_slots = 2;
  grow(layout.q_slots, 2);
  while (grow(layout.k_stages, 4) && grow(layout.v_stages, 4)) {
  }
  grow(layout.item_slots, 3);
  return layout;
}

}  // namespace tessella::portable
