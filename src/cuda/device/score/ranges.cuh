// Key ranges and query ranges in a warp's scores. A range is some bits of a row, or of a key: no element is looked at.
#pragma once

#include "cuda/device/score/band_mask.cuh"
#include "cuda/device/tile/sequence.cuh"
#include "portable/element_masks.hpp"

namespace tessella::device {

// Bits of the indices from `first` on, 32 at most, that some range of a row holds. first >= 0.
__device__ __forceinline__ uint32_t held_bits(const portable::Ranges& ranges, int64_t row, int32_t first) {
  uint32_t bits = 0;
#pragma unroll 1  // rounds side by side would hold registers that kernels lack
  for (int32_t n = 0; n < ranges.count; ++n) {
    const int32_t begin = max(ranges.data[row + 2 * n], 0) - first, end = max(ranges.data[row + 2 * n + 1], 0) - first;
    bits |= ptx::low_bits(static_cast<uint32_t>(max(end, 0))) & ~ptx::low_bits(static_cast<uint32_t>(max(begin, 0)));
  }
  return bits;
}

// Of 32 keys from first_key on: which of them query i sees.
__device__ __forceinline__ uint32_t keys_of_query(const portable::KeyRanges& ranges, const Sequence& s,
                                                  int32_t batch_idx, int32_t head_idx, int32_t i, int32_t first_key) {
  return held_bits(ranges, ranges.row(s, batch_idx, head_idx, i), s.slot_kv + first_key);
}
// Of 32 queries from first_q on: which of them see key j. The sequence's last key stands for those past it.
__device__ __forceinline__ uint32_t queries_of_key(const portable::QueryRanges& ranges, const Sequence& s,
                                                   int32_t batch_idx, int32_t head_idx, int32_t first_q, int32_t j) {
  const int64_t number = ranges.row(s, batch_idx, head_idx, 0);
  return held_bits(ranges, ranges.ranges_of(s, batch_idx, number, min(j, s.len_kv - 1)), first_q);
}

// Clears from `visible` the columns (columns_below() has their order) that key ranges hide from query i.
template <int TileKv>
__device__ __forceinline__ void hide_by_key_ranges(const portable::KeyRanges& ranges, const Sequence& s,
                                                   int32_t batch_idx, int32_t head_idx, int32_t i, int32_t first_kv,
                                                   int lane, uint32_t& visible) {
  const int32_t* of_row = ranges.data + ranges.row(s, batch_idx, head_idx, i);
  const auto below = [&](int32_t slot) { return columns_below<TileKv>(max(slot, 0) - s.slot_kv - first_kv, lane); };
  uint32_t columns = 0;
#pragma unroll 1
  for (int32_t n = 0; n < ranges.count; ++n) columns |= below(of_row[2 * n + 1]) & ~below(of_row[2 * n]);
  visible &= columns;
}

// Clears from `visible` the columns that query ranges hide from rows lane / 4 and lane / 4 + 8 of a warp's 16, the
// first of which is query first_q. A whole warp calls it: a lane finds the rows that see its key.
template <int TileKv>
__device__ __forceinline__ void hide_by_query_ranges(const portable::QueryRanges& ranges, const Sequence& s,
                                                     int32_t batch_idx, int32_t head_idx, int32_t first_q,
                                                     int32_t first_kv, int lane, uint32_t (&visible)[2]) {
#pragma unroll 1
  for (int32_t word = 0; word * 32 < TileKv; ++word) {
    const uint32_t rows = queries_of_key(ranges, s, batch_idx, head_idx, first_q, first_kv + word * 32 + lane);
    uint32_t columns = 0;  // of the upper row, and eight bits higher of the lower one
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      columns |= (__shfl_sync(kAllLanes, rows, i / 2 * 8 + lane % 4 * 2 + i % 2) >> lane / 4 & 0x101) << i;
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) visible[r] &= (columns >> r * 8 & 0xFF) << word * 8 | ~(0xFFu << word * 8);
  }
}

}  // namespace tessella::device
