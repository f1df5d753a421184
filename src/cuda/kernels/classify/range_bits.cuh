// What ranges alone say of a tile's keys, without a look at each element: a thread takes a row, or a key.
#pragma once

#include "cuda/kernels/classify/mask_tile.cuh"

namespace tessella::device {

// Ranges of keys: a thread finds what its rows see of all keys of the tile, and a warp joins its rows.
__device__ __forceinline__ KeyBits bits_of_key_ranges(const portable::ClassifyParams& p, const MaskTile& of) {
  const portable::KeyRanges& ranges = p.masks.elements.key_ranges;
  KeyBits words[portable::kSeenWords];
  for (auto row = static_cast<int32_t>(threadIdx.x); row < of.rows; row += portable::kClassifyWarps * 32) {
    const int32_t i = of.first_q + row;
    const int32_t* of_row = ranges.data + ranges.row(of.s, of.batch_idx, of.head_idx, i);
    uint32_t visible[portable::kSeenWords] = {};
#pragma unroll 1
    for (int32_t n = 0; n < ranges.count; ++n) {
      const KeyRange range = {max(of_row[2 * n], 0) - of.s.slot_kv, max(of_row[2 * n + 1], 0) - of.s.slot_kv};
#pragma unroll
      for (int word = 0; word < portable::kSeenWords; ++word) {
        visible[word] |= keys_between(range, of.first_kv + word * 32);
      }
    }
    const KeyRange band = row_keys(of.s, i);
    const KeyRange kept = {0, min(p.masks.keep_first, band.end)}, tile = {of.first_kv, of.first_kv + of.keys};
#pragma unroll
    for (int word = 0; word < portable::kSeenWords; ++word) {
      const int32_t first = of.first_kv + word * 32;
      words[word].add(visible[word],
                      keys_between(tile, first) & (keys_between(band, first) | keys_between(kept, first)));
    }
  }
  KeyBits own;  // lane `word` has that of the warp
#pragma unroll
  for (int word = 0; word < portable::kSeenWords; ++word) {
    const uint32_t seen = __reduce_or_sync(kAllLanes, words[word].seen);
    const uint32_t hidden = __reduce_or_sync(kAllLanes, ~words[word].shown);
    if (threadIdx.x % 32 == word) own = {seen, ~hidden};
  }
  return add_warps(own, threadIdx.x % 32 < portable::kSeenWords, threadIdx.x % 32);
}

// Ranges of queries, in a tile that the band shows whole: a thread counts the tile's rows that see its key.
__device__ __forceinline__ KeyBits bits_of_query_ranges(const portable::ClassifyParams& p, const MaskTile& of) {
  static_assert(portable::kClassifyWarps == portable::kSeenWords, "a warp finds a word of keys");
  const portable::QueryRanges& ranges = p.masks.elements.query_ranges;
  const auto key = static_cast<int32_t>(threadIdx.x);
  const bool is_here = key < of.keys;
  int32_t rows = 0;
  if (is_here) {
    const int64_t number = ranges.row(of.s, of.batch_idx, of.head_idx, of.first_q);
    const int32_t* of_key = ranges.data + ranges.ranges_of(of.s, of.batch_idx, number, of.first_kv + key);
#pragma unroll 1
    for (int32_t n = 0; n < ranges.count; ++n) {
      const int32_t begin = max(of_key[2 * n], of.first_q), end = min(of_key[2 * n + 1], of.first_q + of.rows);
      if (begin < end) rows += end - begin;
    }
  }
  const uint32_t seen = __ballot_sync(kAllLanes, rows > 0),
                 hidden = __ballot_sync(kAllLanes, is_here && rows < of.rows);
  KeyBits own;
  const uint32_t lane = threadIdx.x % 32;
  if (lane == threadIdx.x / 32) own = {seen, ~hidden};
  return add_warps(own, lane < portable::kSeenWords, lane);
}

}  // namespace tessella::device
