// Hides the scores that lie outside the band. The layout of accumulators is that of ptx/mma.cuh.
#pragma once

#include "cuda/device/score/softmax.cuh"
#include "cuda/device/tile/keys.cuh"

namespace tessella::device {

// Sets the bits of keys below `limit`, counted from the tile's first. Bit 2 j + c of a row's word is column c of the
// lane's pair in block j.
template <int TileKv>
__device__ __forceinline__ uint32_t columns_below(int32_t limit, int lane) {
  static_assert(TileKv <= 128, "a row's columns fit in a word");
  const int32_t own = min(max(limit - lane % 4 * 2, 0), TileKv);
  return ptx::low_bits((own + 7) / 8 + (own + 6) / 8);  // those of the pairs' first columns and of their second ones
}

// Sets the bits of keys from `begin` on and of those below keep_first, counted likewise.
template <int TileKv>
__device__ __forceinline__ uint32_t columns_from(int32_t begin, int32_t keep_first, int lane) {
  return ~columns_below<TileKv>(begin, lane) | columns_below<TileKv>(keep_first, lane);
}

// The bits of a tile at first_key for a row that sees these keys and those below keep_first.
template <int TileKv>
__device__ __forceinline__ uint32_t columns_in(KeyRange keys, int32_t first_key, int32_t keep_first, int lane) {
  return columns_below<TileKv>(keys.end - first_key, lane) &
         columns_from<TileKv>(keys.begin - first_key, keep_first - first_key, lane);
}

// Hides all but `visible` columns of row r (0 or 1) of the lane.
template <int Blocks>
__device__ __forceinline__ void hide_columns(float (&s)[Blocks][4], int r, uint32_t visible) {
#pragma unroll
  for (int j = 0; j < Blocks; ++j) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      if ((visible & (1u << (2 * j + c))) == 0) s[j][r * 2 + c] = -kInfinity;
    }
  }
}

// bounds(m, r): the keys that row r of the lane in block m sees beside those below keep_first.
template <int MBlocks, int Blocks, class Bounds>
__device__ __forceinline__ void hide_outside(float (&s)[MBlocks][Blocks][4], int32_t first_key, int32_t keep_first,
                                             int lane, const Bounds& bounds) {
#pragma unroll
  for (int m = 0; m < MBlocks; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      hide_columns(s[m], r, columns_in<Blocks * 8>(bounds(m, r), first_key, keep_first, lane));
  }
}

}  // namespace tessella::device
