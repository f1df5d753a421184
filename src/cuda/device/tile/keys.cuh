// The key tiles that a query tile visits, in order, and which of their keys a warp sees.
#pragma once

#include "cuda/device/tile/constants.cuh"
#include "cuda/device/tile/sequence.cuh"
#include "portable/tile_class.hpp"

namespace tessella::device {

using portable::TileClass;

// Tiles [0, keep_first_end) (of keep_first) and [begin, end) hold the keys that rows [first, last] see; keep_first_end
// <= begin. All of these rows see all keys of tiles [full_begin, full_end).
struct KeyTiles {
  int32_t keep_first_end, begin, end, full_begin, full_end;

  __device__ bool sees(int32_t tile) const { return tile < end && (tile >= begin || tile < keep_first_end); }
  __device__ bool is_full(int32_t tile) const { return tile >= full_begin && tile < full_end; }
  // How many of these tiles come before `tile`.
  __device__ int32_t count_before(int32_t tile) const {
    return min(tile, keep_first_end) + max(0, min(tile, end) - begin);
  }
  __device__ bool all_are_full() const { return keep_first_end == 0 && full_begin <= begin && full_end >= end; }
};

// Keys [begin, end) that a row sees in addition to those of keep_first.
struct KeyRange {
  int32_t begin, end;
  __device__ bool sees(int32_t key, int32_t keep_first) const {
    return key < end && (key >= begin || key < keep_first);
  }
};

template <class Int>
__device__ __forceinline__ KeyRange row_keys(const BandedSequence<Int>& sequence, int32_t row) {
  const Int end = sequence.band.end(row);
  return {static_cast<int32_t>(sequence.band.begin(row, end)), static_cast<int32_t>(end)};
}

// The tiles of a run of rows, from the key ranges of its first and last row.
template <int TileKv>
__device__ __forceinline__ KeyTiles key_tiles(KeyRange first, KeyRange last, int32_t keep_first) {
  const auto ceil = [](int32_t keys) { return (keys + TileKv - 1) / TileKv; };
  KeyTiles tiles;
  tiles.begin = first.begin / TileKv;
  tiles.end = ceil(last.end);
  tiles.keep_first_end = min(ceil(min(keep_first, last.end)), tiles.begin);
  tiles.full_begin = ceil(last.begin);
  tiles.full_end = first.end / TileKv;
  return tiles;
}

// A bit for each of 32 tiles: the block visits it; element masks hide some of it.
struct TileBits {
  uint32_t visible = 0, partial = 0;
};
// The bits of the tiles from `first` on. A whole warp calls it.
__device__ __forceinline__ TileBits tile_bits(const KeyTiles& tiles, const uint8_t* tile_map, int32_t first) {
  const int32_t mine = first + static_cast<int32_t>(threadIdx.x % 32);
  const auto kind = tiles.sees(mine) ? static_cast<TileClass>(tile_map[mine]) : TileClass::hidden;
  return {__ballot_sync(kAllLanes, kind != TileClass::hidden), __ballot_sync(kAllLanes, kind == TileClass::partial)};
}

// The tiles that a block visits, in order: those its rows see, except those that the tile map (if there is one) marks
// hidden. Every thread of a warp holds the classes of 32 tiles as bits, so the loop over tiles waits for no load.
template <bool HasMap>
class VisitedTiles {
 public:
  // The first tile at or after `tile` in [0, tiles.end), or tiles.end. With a map, `tile` is 0 or the successor of
  // next()'s last result.
  __device__ __forceinline__ int32_t next(const KeyTiles& tiles, const uint8_t* tile_map, int32_t tile) {
    if constexpr (!HasMap) {
      return tile >= tiles.keep_first_end && tile < tiles.begin ? tiles.begin : tile;
    } else {
      const uint32_t later = tile - first_ < 32 ? bits_.visible >> (tile - first_) : 0;
      if (later != 0) return tile + __ffs(static_cast<int>(later)) - 1;
      for (tile = first_ + 32; tile < tiles.end; tile += 32) {
        first_ = tile;
        bits_ = tile_bits(tiles, tile_map, tile);
        if (bits_.visible != 0) return tile + __ffs(static_cast<int>(bits_.visible)) - 1;
      }
      return tiles.end;
    }
  }
  // True if the tile map says that element masks hide some of the tile. next() must have returned the tile.
  __device__ bool is_partial(int32_t tile) const { return HasMap && (bits_.partial >> (tile - first_) & 1) != 0; }

 private:
  int32_t first_ = -32;
  TileBits bits_;
};

}  // namespace tessella::device
