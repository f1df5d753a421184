// Passes over element masks, and bands that are not contiguous, queued before a kernel. classify_tiles writes the tile
// map of the kernel (score/mask.cuh). map_mask writes the map of the mask, from which classify_tiles makes the tile
// maps of many calls.
//
// A tile is hidden, partial or full by two bits of each of its keys: some query sees it, band included; element masks
// hide it from no query to which the band shows it. It is partial too where a key between those of its queries is seen
// by none, as in bands that are not contiguous. Where the mask is read, the warps of a block share the rows of a tile,
// and a lane has four keys. Where its map is read, one warp finds a tile, and a lane has a word of 32 keys.
#pragma once

#include "cuda/device/ptx/shared.cuh"
#include "cuda/device/score/mask.cuh"
#include "cuda/kernels/classify/mask_tile.cuh"
#include "cuda/kernels/classify/params.cuh"
#include "cuda/kernels/classify/range_bits.cuh"
#include "portable/query_tiles.hpp"

namespace tessella::device {

using portable::ClassifyConfig, portable::ClassifyParams;

inline constexpr int kLanesOfWord = 32 / kKeysAtOnce;
inline constexpr int kRowsOfTurn = 16;  // that a warp reads in turn with others

// True if element masks may show row i other keys than row i - 1.
template <ScoreConfig C>
__device__ __forceinline__ bool differs_from_last(const ClassifyParams& p, const MaskTile& of, int32_t i) {
  bool differs = C.mask_mod;
  for_each_mask(C.element_masks, p.masks.elements, [&](bool has, const auto& mask) {
    if (!has) return;
    const auto row = [&](int32_t query) { return mask.row(of.s, of.batch_idx, of.head_idx, query); };
    differs = differs || row(i) != row(i - 1);
  });
  return differs;
}

// Which of the lane's keys of a tile the band shows to rows whose key ranges the lanes have in turn.
class BandRows {
 public:
  __device__ __forceinline__ BandRows(const portable::MasksParams& masks, const MaskTile& of, int32_t lane_key,
                                      int32_t first, int32_t last)
      : own_(row_keys(of.s, of.first_q + min(first + static_cast<int32_t>(threadIdx.x % 32), last))),
        first_key_(of.first_kv + lane_key),
        keys_(of.keys - lane_key),
        keep_first_(masks.keep_first) {}
  // row: from `first` on. A whole warp calls it.
  __device__ __forceinline__ uint32_t visible(int32_t row) const {
    const KeyRange keys = {__shfl_sync(kAllLanes, own_.begin, row), __shfl_sync(kAllLanes, own_.end, row)};
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < kKeysAtOnce; ++i) {
      if (i < keys_ && keys.sees(first_key_ + i, keep_first_)) bits |= 1u << i;
    }
    return bits;
  }

 private:
  KeyRange own_;
  int32_t first_key_, keys_, keep_first_;
};

// What the warp's rows of a tile say of the lane's four keys, of a dense mask alone in whole words, and of at least
// kRowsOfTurn rows. Loads wait side by side. Turns may overlap: bits are joined by or and by and.
template <ScoreConfig C>
__device__ __forceinline__ KeyBits read_words(const ClassifyParams& p, const MaskTile& of,
                                              const ElementRows<C>& elements) {
  const auto warp = static_cast<int32_t>(threadIdx.x / 32), lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t lane_key = lane * kKeysAtOnce;
  const bool is_here = lane_key < of.keys;
  KeyBits bits;
  uint32_t some = 0, all = ~0u;  // as nonzero_bytes() has them
  for (int32_t turn = warp * kRowsOfTurn; __any_sync(kAllLanes, turn < of.rows);
       turn += portable::kClassifyWarps * kRowsOfTurn) {
    const int32_t first = min(turn, of.rows - kRowsOfTurn);
    const uint8_t* row = elements.dense_row(of.first_q + first) + of.first_kv + lane_key;
    uint32_t words[kRowsOfTurn];
#pragma unroll
    for (int i = 0; i < kRowsOfTurn; ++i) {
      words[i] = is_here ? *reinterpret_cast<const uint32_t*>(row) : 0;
      row += p.masks.elements.dense_mask.q_stride;
    }
    if (of.is_in_band) {
#pragma unroll
      for (int i = 0; i < kRowsOfTurn; ++i) {
        some |= nonzero_bytes(words[i]);
        all &= nonzero_bytes(words[i]);
      }
      if (p.masks.elements.dense_mask.q_stride == 0) break;
    } else {
      const BandRows band(p.masks, of, lane_key, first, first + kRowsOfTurn - 1);
#pragma unroll
      for (int i = 0; i < kRowsOfTurn; ++i) bits.add(bits_of_bytes(nonzero_bytes(words[i])), band.visible(i));
    }
  }
  if (of.is_in_band && is_here) bits.add({bits_of_bytes(some), bits_of_bytes(all & 0x80808080) | ~kAllAtOnce});
  return bits;
}

// The same of any masks.
template <ScoreConfig C>
__device__ __forceinline__ KeyBits read_rows(const ClassifyParams& p, const MaskTile& of,
                                             const ElementRows<C>& elements) {
  const auto warp = static_cast<int32_t>(threadIdx.x / 32), lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t lane_key = lane * kKeysAtOnce;
  const uint32_t all_keys = lane_key < of.keys ? kAllAtOnce : 0;  // of a tile in the band, which is whole
  KeyBits bits;
  for (int32_t first = warp * kRowsOfTurn; __any_sync(kAllLanes, first < of.rows);
       first += portable::kClassifyWarps * kRowsOfTurn) {
    const int32_t last = min(first + kRowsOfTurn, of.rows) - 1;
    const BandRows band(p.masks, of, lane_key, first, last);
    uint32_t visible = 0;
#pragma unroll 1
    for (int32_t row = first; row <= last; ++row) {
      const int32_t i = of.first_q + row;
      const bool reads = lane_key < of.keys && (row == first || differs_from_last<C>(p, of, i));
      if (reads) visible = elements.visible(i, of.first_kv + lane_key);
      bits.add(visible, of.is_in_band ? all_keys : band.visible(row - first));
    }
  }
  return bits;
}

// The bits of a tile's keys by words of 32, in lanes below kSeenWords of the first warp. All threads of the block call
// it.
template <ScoreConfig C>
__device__ __forceinline__ KeyBits find_key_bits(const ClassifyParams& p, const MaskTile& of) {
  if constexpr (num_masks(C) == 1 && C.element_masks.key_ranges) return bits_of_key_ranges(p, of);
  if constexpr (num_masks(C) == 1 && C.element_masks.query_ranges) {
    if (of.is_in_band) return bits_of_query_ranges(p, of);
  }
  const auto lane = threadIdx.x % 32;
  const ElementRows<C> elements(p.masks, p.arrays, of.s, of.batch_idx, of.head_idx, of.first_kv, of.keys);
  constexpr bool kIsDense = C.element_masks.dense_mask && num_masks(C) == 1;
  KeyBits mine;
  if (kIsDense && elements.is_whole() && of.keys % kKeysAtOnce == 0 && of.rows >= kRowsOfTurn) {
    mine = read_words<C>(p, of, elements);
  } else {
    mine = read_rows<C>(p, of, elements);
  }
  const uint32_t first_bit = lane % kLanesOfWord * kKeysAtOnce;
  mine.seen = (mine.seen & kAllAtOnce) << first_bit;
  uint32_t hidden = (~mine.shown & kAllAtOnce) << first_bit;
#pragma unroll
  for (int with = 1; with < kLanesOfWord; with *= 2) {
    mine.seen |= __shfl_xor_sync(kAllLanes, mine.seen, with);
    hidden |= __shfl_xor_sync(kAllLanes, hidden, with);
  }
  mine.shown = ~hidden;
  return add_warps(mine, lane % kLanesOfWord == 0, lane / kLanesOfWord);
}

// The words of a mask's map for 64 queries and 32 keys.
__device__ __forceinline__ KeyBits* map_entry(const ClassifyParams& p, int64_t map_idx, int32_t run, int32_t word) {
  const int32_t runs = (p.sequences.seqlen_q + portable::kMapQueries - 1) / portable::kMapQueries;
  const int32_t words = (p.sequences.seqlen_kv + 31) / 32;
  return reinterpret_cast<KeyBits*>(p.mask_map) + (map_idx * runs + run) * words + word;
}

// The same by the map of the mask: of all queries of the 64 that some row of the tile is among. By one warp.
__device__ __forceinline__ KeyBits key_bits_of_map(const ClassifyParams& p, const MaskTile& of, int64_t map_idx) {
  const auto word = static_cast<int32_t>(threadIdx.x % portable::kSeenWords);
  const int32_t first = of.first_kv + word * 32, end = of.first_kv + of.keys;
  KeyBits bits;
  for (int32_t run = of.first_q / portable::kMapQueries; run * portable::kMapQueries < of.first_q + of.rows; ++run) {
    if (first >= end) break;
    KeyBits own = *map_entry(p, map_idx, run, first / 32);
    if (const int32_t shift = first % 32; shift != 0) {
      const bool has_next = first + 32 - shift < end;
      const KeyBits next = has_next ? *map_entry(p, map_idx, run, first / 32 + 1) : KeyBits();
      own.seen = own.seen >> shift | next.seen << (32 - shift);
      own.shown = own.shown >> shift | next.shown << (32 - shift);
    }
    const uint32_t valid = end - first < 32 ? (1u << (end - first)) - 1 : ~0u;
    bits.add({own.seen & valid, own.shown | ~valid});
  }
  return bits;
}

// Block by block: key tiles fastest, then query tiles, heads and batches that have a map of their own.
struct MapPosition {
  int64_t map_idx;
  int32_t batch_idx, head_idx, tile_q_idx, tile_kv_idx;
};
__device__ __forceinline__ MapPosition map_position(const ClassifyParams& p) {
  const auto tile_idx = static_cast<int32_t>(blockIdx.x);
  const int32_t row_idx = tile_idx / p.tile_map.kv_tiles, map_idx = row_idx / p.tiles_q;
  const int32_t heads = p.tile_map.head_stride == 0 ? 1 : p.sequences.heads_q.value;
  return {map_idx, map_idx / heads, map_idx % heads, row_idx % p.tiles_q, tile_idx % p.tile_map.kv_tiles};
}

// The tile at a position and which key tiles its rows see by the band. rows: 0 if there are none. keys: of the tile,
// from the first that its first row sees to the last that its last row sees.
struct BandedMaskTile {
  MaskTile tile;
  KeyTiles seen;
  KeyRange keys;
};
template <ClassifyConfig C>
__device__ __forceinline__ BandedMaskTile mask_tile(const ClassifyParams& p, const MapPosition& at) {
  const BandedSequence<int64_t> s = sequence(p.sequences, p.masks, at.batch_idx);
  const auto [first_q, end_q] = portable::tile_queries(s.len_q, C.tile_q, at.tile_q_idx);
  const int32_t first_kv = at.tile_kv_idx * C.tile_kv, rows = max(end_q - first_q, 0);
  BandedMaskTile banded{
      {s, at.batch_idx, at.head_idx, first_q, rows, first_kv, min(C.tile_kv, s.len_kv - first_kv), false}, {}, {}};
  if (rows == 0) return banded;
  const KeyRange first = row_keys(s, first_q), last = row_keys(s, first_q + rows - 1);
  banded.seen = key_tiles<C.tile_kv>(first, last, p.masks.keep_first);
  banded.keys = {first.begin, min(last.end, first_kv + banded.tile.keys)};
  banded.tile.is_in_band = __all_sync(kAllLanes, banded.seen.is_full(at.tile_kv_idx));
  return banded;
}

// A block for each tile of C.tile_q x C.tile_kv writes its class and the words of its seen keys, if the band does not
// hide the tile.
template <ClassifyConfig C>
__global__ void __launch_bounds__(portable::kClassifyWarps * 32, C.blocks)
    classify_tiles(const __grid_constant__ ClassifyParams p) {
  static_assert(C.tile_kv % kKeysAtOnce == 0 && C.tile_kv <= 32 * kKeysAtOnce, "a lane has four keys");
  const MapPosition at = map_position(p);
  const auto [tile, seen, keys] = mask_tile<C>(p, at);
  if (tile.rows == 0 || !seen.sees(at.tile_kv_idx)) return;
  KeyBits bits;
  if constexpr (C.has_map) bits = key_bits_of_map(p, tile, at.map_idx);
  if constexpr (!C.has_map) bits = find_key_bits<C.masks>(p, tile);
  if (threadIdx.x >= 32) return;
  const bool is_word = threadIdx.x < portable::kSeenWords;
  const bool is_seen = __any_sync(kAllLanes, is_word && bits.seen != 0);
  // Keys between those of the first row and those of the last, which no row sees.
  const uint32_t holes = ~bits.seen & keys_between(keys, tile.first_kv + static_cast<int32_t>(threadIdx.x) * 32);
  const bool is_partial = __any_sync(kAllLanes, is_word && (bits.shown != ~0u || holes != 0));
  uint8_t* to = tile_classes(p.tile_map, at.batch_idx, at.head_idx, at.tile_q_idx) + at.tile_kv_idx;
  const TileClass found = !is_seen ? TileClass::hidden : is_partial ? TileClass::partial : TileClass::full;
  if (threadIdx.x == 0) *to = static_cast<uint8_t>(found);
  if (p.tile_map.seen_keys == nullptr || !is_seen || !is_word) return;
  const int32_t own_keys = C.tile_kv - static_cast<int32_t>(threadIdx.x) * 32;
  const uint32_t past = own_keys >= 32 ? 0 : own_keys <= 0 ? ~0u : ~0u << own_keys;
  seen_keys(p.tile_map, to)[threadIdx.x] = bits.seen | past;
}

// A block for each tile of C.tile_q x C.tile_kv = 64 queries x 128 keys writes the map's words.
template <ClassifyConfig C>
__global__ void __launch_bounds__(portable::kClassifyWarps * 32, C.blocks)
    map_mask(const __grid_constant__ ClassifyParams p) {
  static_assert(C.tile_q == portable::kMapQueries && C.tile_kv == portable::kSeenWords * 32);
  const MapPosition at = map_position(p);
  const BandedMaskTile banded = mask_tile<C>(p, at);
  const MaskTile& tile = banded.tile;
  KeyBits bits;
  if (tile.rows > 0 && banded.seen.sees(at.tile_kv_idx)) bits = find_key_bits<C.masks>(p, tile);
  const auto word = static_cast<int32_t>(threadIdx.x);
  if (word >= portable::kSeenWords || tile.first_kv + word * 32 >= p.sequences.seqlen_kv) return;
  *map_entry(p, at.map_idx, at.tile_q_idx, tile.first_kv / 32 + word) = bits;
}

}  // namespace tessella::device
