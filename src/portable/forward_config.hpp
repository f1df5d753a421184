// What a forward kernel for GPUs is compiled for. A template argument: integers and enums only.
//
// Everything else (lengths, strides, GQA, windows, sink, LSE) is read at run time from ForwardParams. A feature that
// costs instructions in the inner loop is here, so that calls without it do not pay.
#pragma once

#include "portable/integers.hpp"

namespace tessella::portable {

enum class Element : int32_t { bf16, f16, f32 };
constexpr int32_t size_bytes(Element element) { return element == Element::f32 ? 4 : 2; }

// Which keys a query sees. band: an interval (portable/band.hpp). bits: a predicate beside it, element by element in
// the tiles that the tile map calls partial.
enum class MaskLevel : int32_t { band, bits };

struct ForwardConfig {
  Element element = Element::bf16;  // of q, k and v
  int32_t head_dim_qk = 0;          // as compiled: rows are padded to it with zeros
  int32_t head_dim_v = 0;           // columns of v that one thread block computes
  int32_t tile_q = 0;
  int32_t tile_kv = 0;
  int32_t num_warps = 0;
  int32_t cluster = 1;        // blocks that load keys for each other: neighbouring tiles of queries, which see the same
  int32_t blocks_per_sm = 1;  // resident at once: bounds the registers
  bool vector_loads = true;   // rows of q, k and v start at multiples of 16 bytes and hold whole 16-byte chunks
  bool paged = false;         // k and v
  MaskLevel mask = MaskLevel::band;
  bool softcap = false;
  bool short_series = false;  // of a softcap alone: two terms for three, where P in bf16 is all that is wanted
  bool scales_q = false;      // with it: q is multiplied by a power of two, for squares that saturate at 1
  bool alibi = false;
  bool bias = false;
  bool bias_is_f32 = false;  // else in the type of q
  bool dropout = false;
  bool score = false;        // the caller's text
  bool by_distance = false;  // which asks for q_minus_k; forward_sm90's
  // What MaskLevel::bits is made of.
  bool documents = false;
  bool dense_mask = false;
  bool block_map = false;
  bool keep = false;  // the caller's text
  // What becomes of a row depends on it and on its keys alone, not on the rows beside it.
  bool batch_invariant = false;
  bool operator==(const ForwardConfig&) const = default;
};

constexpr int32_t num_masks(const ForwardConfig& c) {
  return (c.documents ? 1 : 0) + (c.dense_mask ? 1 : 0) + (c.block_map ? 1 : 0) + (c.keep ? 1 : 0);
}

// A softcap alone in half precision, whose exponents come from products by a series (device/score/score.hpp) that
// serves all rows of a warp or none. Beside dropout wide rows of v leave forward_sm90 no registers for it.
constexpr bool has_series(const ForwardConfig& c) {
  return c.softcap && !c.alibi && !c.bias && !c.score && c.element != Element::f32 && !c.batch_invariant &&
         !(c.dropout && c.head_dim_v > 192);
}

// Shared memory of forward_sm80: tiles of q, k and v; begin and end of each row's keys; of a tile what each warp and
// what each lane sees; what the block works on.
constexpr int32_t tile_bytes(const ForwardConfig& c) {
  return (c.tile_q * c.head_dim_qk + c.tile_kv * (c.head_dim_qk + c.head_dim_v)) * size_bytes(c.element);
}
inline constexpr int32_t kPlaceBytes = 512;
inline constexpr int32_t kClassifyWarps = 4;  // of a block of classify_tiles, a tile each
// Words of 32 keys that hold what a warp sees of a partial tile.
constexpr int32_t mask_words(const ForwardConfig& c) { return c.mask == MaskLevel::bits ? (c.tile_kv + 31) / 32 : 0; }
constexpr int32_t seen_bytes(const ForwardConfig& c) { return c.mask == MaskLevel::bits ? c.num_warps * 16 : 0; }
// A word for each of a lane's rows.
constexpr int32_t visible_bytes(const ForwardConfig& c) { return c.mask == MaskLevel::bits ? c.tile_q * 16 : 0; }
constexpr int32_t shared_bytes(const ForwardConfig& c) {
  return tile_bytes(c) + c.tile_q * 8 + seen_bytes(c) + visible_bytes(c) + kPlaceBytes;
}

}  // namespace tessella::portable
