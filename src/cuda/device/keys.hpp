// The key tiles that a tile of queries visits, in order, and what of them a warp sees.
#pragma once

#include "cuda/device/mask.hpp"
#include "cuda/device/sequence.hpp"

namespace tessella::device {

// Tiles [0, kept) and [begin, end) hold the keys that rows [first, last] see; [full_begin, full_end) are seen whole by
// each of them. kept <= begin.
struct KeyTiles {
  int32_t kept, begin, end, full_begin, full_end;

  __device__ bool sees(int32_t tile) const { return tile < end && (tile >= begin || tile < kept); }
  __device__ bool all_are_full() const { return kept == 0 && full_begin <= begin && full_end >= end; }
};

// Keys [begin, end) that a row sees, beside those of keep_first.
struct KeyRange {
  int32_t begin, end;
};

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

// The next tile at or after `tile` that the rows see and the tile map, if there is one, does not call hidden;
// tiles.end where there is none.
template <bool HasMap>
__device__ __forceinline__ int32_t next_tile(const KeyTiles& tiles, const uint8_t* tile_map, int32_t tile) {
  for (;; ++tile) {
    if (tile >= tiles.kept && tile < tiles.begin) tile = tiles.begin;
    if (tile >= tiles.end) return tiles.end;
    if (!HasMap || tile_map[tile] != static_cast<uint8_t>(TileClass::hidden)) return tile;
  }
}

}  // namespace tessella::device
