// The key tiles that a tile of queries visits, in order, and what of them a warp sees.
#pragma once

#include "cuda/device/schedule/sequence.hpp"
#include "cuda/device/score/softmax.hpp"

namespace tessella::device {

// Of a tile of scores, by the element masks alone.
enum class TileClass : uint8_t { hidden = 0, partial = 1, full = 2 };

// Tiles [0, kept) and [begin, end) hold the keys that rows [first, last] see; [full_begin, full_end) are seen whole by
// each of them. kept <= begin.
struct KeyTiles {
  int32_t kept, begin, end, full_begin, full_end;

  __device__ bool sees(int32_t tile) const { return tile < end && (tile >= begin || tile < kept); }
  __device__ bool is_full(int32_t tile) const { return tile >= full_begin && tile < full_end; }
  // Tiles of these below `tile`.
  __device__ int32_t count_before(int32_t tile) const { return min(tile, kept) + max(0, min(tile, end) - begin); }
  __device__ bool all_are_full() const { return kept == 0 && full_begin <= begin && full_end >= end; }
};

// Keys [begin, end) that a row sees, beside those of keep_first.
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

// For the ranges of the first and the last row of a run.
template <int TileKv>
__device__ __forceinline__ KeyTiles key_tiles(KeyRange first, KeyRange last, int32_t keep_first) {
  const auto ceil = [](int32_t keys) { return (keys + TileKv - 1) / TileKv; };
  KeyTiles tiles;
  tiles.begin = first.begin / TileKv;
  tiles.end = ceil(last.end);
  tiles.kept = min(ceil(min(keep_first, last.end)), tiles.begin);
  tiles.full_begin = ceil(last.begin);
  tiles.full_end = first.end / TileKv;
  return tiles;
}

// Of 32 tiles, a bit each: those that a block visits, and which of them element masks hide some of.
struct TileBits {
  uint32_t visible = 0, partial = 0;
};
// By a whole warp, of the tiles from `first` on.
__device__ __forceinline__ TileBits tile_bits(const KeyTiles& tiles, const uint8_t* tile_map, int32_t first) {
  const int32_t mine = first + static_cast<int32_t>(threadIdx.x % 32);
  const auto kind = tiles.sees(mine) ? static_cast<TileClass>(tile_map[mine]) : TileClass::hidden;
  return {__ballot_sync(kAllLanes, kind != TileClass::hidden), __ballot_sync(kAllLanes, kind == TileClass::partial)};
}

// The tiles that a block visits, in order: those its rows see but those that the tile map, if there is one, calls
// hidden. Every thread of a warp holds the classes of 32 tiles as bits, so that walking them waits for no load.
template <bool HasMap>
class VisitedTiles {
 public:
  // The first tile at or after `tile` in [0, tiles.end), or tiles.end. With a map `tile` is 0 or the one after
  // next()'s.
  __device__ __forceinline__ int32_t next(const KeyTiles& tiles, const uint8_t* tile_map, int32_t tile) {
    if constexpr (!HasMap) {
      return tile >= tiles.kept && tile < tiles.begin ? tiles.begin : tile;
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
  // True if the tile map says that element masks hide some of a tile that next() gave.
  __device__ bool is_partial(int32_t tile) const { return HasMap && (bits_.partial >> (tile - first_) & 1) != 0; }

 private:
  int32_t first_ = -32;
  TileBits bits_;
};

}  // namespace tessella::device
