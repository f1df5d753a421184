// Masks that are not an interval of keys, tested element by element, and the tile map that avoids the test in most
// tiles.
#pragma once

#include "cuda/device/ptx/order.hpp"
#include "cuda/device/schedule/sequence.hpp"
#include "cuda/device/score/arrays.hpp"
#include "cuda/device/score/softmax.hpp"
#include "cuda/device/tile/keys.hpp"
#include "portable/classify.hpp"
#include "portable/query_tiles.hpp"
#include "portable/score_config.hpp"
#include "user.hpp"  // user::mask_mod: the caller's source

namespace tessella::device {

using portable::ClassifyConfig;
using portable::ScoreConfig;

// True if documents, dense mask, block map, draft mask and the caller's mask modification let query i see key j. Both
// are inside the lengths.
template <ScoreConfig C>
__device__ __forceinline__ bool is_visible(const portable::ForwardParams& p, const Sequence& s, int32_t batch_idx,
                                           int32_t head_idx, int32_t i, int32_t j) {
  const int64_t slot = s.slot_kv + j;
  const auto flag = [&](const portable::ScoreOperandParams& mask, int64_t q, int64_t kv) {
    return static_cast<const uint8_t*>(mask.data)[batch_idx * mask.batch_stride + head_idx * mask.head_stride +
                                                  q * mask.q_stride + kv * mask.kv_stride] != 0;
  };
  bool visible = true;
  if constexpr (C.documents) {
    const auto id = [&](const portable::TableParams& ids, int64_t row) {
      return static_cast<const int32_t*>(ids.data)[batch_idx * ids.batch_stride + row * ids.stride];
    };
    visible = id(p.document_q, s.row_q + i) == id(p.document_kv, s.row_kv + j);
  }
  if constexpr (C.dense_mask) visible = visible && flag(p.dense_mask, i, slot);
  if constexpr (C.block_map) {
    visible =
        visible && flag(p.block_map, p.block_map_q.quotient(i), p.block_map_kv.quotient(static_cast<int32_t>(slot)));
  }
  if constexpr (C.draft_mask) {
    const int32_t draft = j - (s.len_kv - s.len_q);
    visible = visible && (draft < 0 || flag(p.draft_mask, i, draft));
  }
  if constexpr (C.mask_mod) visible = visible && user::mask_mod(batch_idx, head_idx, i, j, Arrays(p));
  return visible;
}

// Clears from `visible` the bits of keys that the element masks hide. `visible` holds columns of a tile as
// columns_below() does, for rows lane / 4 and lane / 4 + 8 of a warp's 16.
template <ScoreConfig C, int TileKv>
__device__ __forceinline__ void hide_by_elements(const portable::ForwardParams& p, const Sequence& s, int32_t batch_idx,
                                                 int32_t head_idx, int32_t first_q, int32_t first_kv,
                                                 uint32_t (&visible)[2]) {
  constexpr int kColumnsAtOnce = num_masks(C) > 1 ? 2 : 8;  // whose loads wait side by side: registers
  auto lane = static_cast<int32_t>(threadIdx.x % 32);
  ptx::forget(lane);  // values derived from it are computed here, where it is rare, and hold no registers
  const auto sees = [&](int row, int32_t key) {
    return is_visible<C>(p, s, batch_idx, head_idx, min(first_q + row, s.len_q - 1), min(key, s.len_kv - 1));
  };
#pragma unroll 1
  for (int r = 0; r < 2; ++r) {
    uint32_t columns = 0;
#pragma unroll kColumnsAtOnce
    for (int i = 0; i < TileKv / 4; ++i) {
      if (sees(r * 8 + lane / 4, first_kv + i / 2 * 8 + lane % 4 * 2 + i % 2)) columns |= 1u << i;
    }
    if (r == 0) visible[0] &= columns;
    if (r == 1) visible[1] &= columns;
  }
}

// The classes of the key tiles of a query tile.
__device__ __forceinline__ uint8_t* tile_classes(const portable::ForwardParams& p, int32_t batch_idx, int32_t head_idx,
                                                 int32_t tile_q_idx) {
  return p.tile_map + batch_idx * p.tile_map_batch_stride + head_idx * p.tile_map_head_stride +
         static_cast<int64_t>(tile_q_idx) * p.kv_tiles;
}
// The words of p.seen_keys for the tile with this class.
__device__ __forceinline__ uint32_t* seen_keys(const portable::ForwardParams& p, const uint8_t* tile_class) {
  return p.seen_keys + (tile_class - p.tile_map) * portable::kSeenWords;
}

// Writes p.seen_keys of the tile of `rows` queries from first_q on and the keys from first_kv on. A whole warp calls
// it.
template <ScoreConfig C, int TileKv>
__device__ __forceinline__ void write_seen_keys(const portable::ForwardParams& p, const BandedSequence<int64_t>& s,
                                                int32_t batch_idx, int32_t head_idx, int32_t first_q, int32_t rows,
                                                int32_t first_kv, uint32_t* to) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  bool seen[portable::kSeenWords];
#pragma unroll
  for (int word = 0; word < portable::kSeenWords; ++word) seen[word] = word * 32 + lane >= TileKv;
  const auto all_are_seen = [&] { return __all_sync(kAllLanes, seen[0] && seen[1] && seen[2] && seen[3]); };
  for (int32_t first = 0; first < rows && !all_are_seen(); first += 32) {
    const KeyRange own = row_keys(s, first_q + min(first + lane, rows - 1));
    for (int32_t i = 0; i < min(32, rows - first); ++i) {
      const KeyRange keys = {__shfl_sync(kAllLanes, own.begin, i), __shfl_sync(kAllLanes, own.end, i)};
#pragma unroll
      for (int word = 0; word < portable::kSeenWords; ++word) {
        const int32_t j = first_kv + word * 32 + lane;
        if (seen[word] || !keys.sees(j, p.keep_first)) continue;
        seen[word] = is_visible<C>(p, s, batch_idx, head_idx, first_q + first + i, j);
      }
    }
  }
#pragma unroll
  for (int word = 0; word < portable::kSeenWords; ++word) {
    const uint32_t bits = __ballot_sync(kAllLanes, seen[word]);
    if (lane == word) to[word] = bits;
  }
}

// One warp for each tile of C.tile_q x C.tile_kv writes its class into the tile map, if the band does not hide the
// tile. Warps count key tiles fastest, then query tiles, heads and batches that have a map of their own.
template <ClassifyConfig C>
__global__ void __launch_bounds__(portable::kClassifyWarps * 32, 4)
    classify_tiles(const __grid_constant__ portable::ForwardParams p) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const uint32_t tile_idx = blockIdx.x * portable::kClassifyWarps + threadIdx.x / 32;
  const auto tile_kv_idx = static_cast<int32_t>(tile_idx % p.kv_tiles);
  const auto tile_q_idx = static_cast<int32_t>(tile_idx / p.kv_tiles % p.tiles_q);
  const auto map_idx = static_cast<int32_t>(tile_idx / p.kv_tiles / p.tiles_q);
  const int32_t heads = p.tile_map_head_stride == 0 ? 1 : p.heads_q.value;
  const int32_t batch_idx = map_idx / heads, head_idx = map_idx % heads;
  if (batch_idx >= (p.tile_map_batch_stride == 0 ? 1 : p.batch)) return;  // the last block's warps
  const BandedSequence<int64_t> s = sequence(p, batch_idx);
  const auto [first_q, end_q] = portable::tile_queries(s.len_q, C.tile_q, tile_q_idx);
  const int32_t first_kv = tile_kv_idx * C.tile_kv;
  const int32_t rows = end_q - first_q, keys = min(C.tile_kv, s.len_kv - first_kv);
  if (rows <= 0) return;
  const KeyTiles seen = key_tiles<C.tile_kv>(row_keys(s, first_q), row_keys(s, first_q + rows - 1), p.keep_first);
  if (!seen.sees(tile_kv_idx)) return;
  int32_t pairs = 0, visible = 0;
  if constexpr (C.masks.block_map && num_masks(C.masks) == 1) {
    // Tests once for each entry of the map.
    const auto slot = static_cast<int32_t>(s.slot_kv) + first_kv;
    const int32_t first_row = p.block_map_q.quotient(first_q), first_column = p.block_map_kv.quotient(slot);
    const int32_t entry_rows = p.block_map_q.quotient(first_q + rows - 1) - first_row + 1;
    const int32_t columns = p.block_map_kv.quotient(slot + keys - 1) - first_column + 1;
    for (int32_t entry = lane; entry < entry_rows * columns; entry += 32) {
      const int32_t i = max((first_row + entry / columns) * p.block_map_q.value, first_q);
      const int32_t j = max((first_column + entry % columns) * p.block_map_kv.value, slot) - s.slot_kv;
      visible += is_visible<C.masks>(p, s, batch_idx, head_idx, i, j) ? 1 : 0;
      ++pairs;
    }
  } else {
#pragma unroll
    for (int first = 0; first < C.tile_kv; first += 32) {
      const int32_t j = first_kv + min(first + lane, keys - 1);  // a key twice does no harm
#pragma unroll 8
      for (int i = 0; i < rows; ++i) visible += is_visible<C.masks>(p, s, batch_idx, head_idx, first_q + i, j) ? 1 : 0;
      pairs += rows;
    }
  }
  const bool sees = __any_sync(kAllLanes, visible > 0);
  const bool hides = __any_sync(kAllLanes, visible < pairs);
  uint8_t* to = tile_classes(p, batch_idx, head_idx, tile_q_idx) + tile_kv_idx;
  if (lane == 0) *to = static_cast<uint8_t>(!sees ? TileClass::hidden : hides ? TileClass::partial : TileClass::full);
  if (p.seen_keys == nullptr || !sees) return;
  if (!hides && seen.is_full(tile_kv_idx)) {  // each query sees each key
    if (lane < portable::kSeenWords) seen_keys(p, to)[lane] = ~0u;
    return;
  }
  write_seen_keys<C.masks, C.tile_kv>(p, s, batch_idx, head_idx, first_q, rows, first_kv, seen_keys(p, to));
}

}  // namespace tessella::device
