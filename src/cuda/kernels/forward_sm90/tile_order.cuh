// In which order a query tile's key tiles are computed. Loops count steps; an order tells which key tile a step is.
#pragma once

#include "cuda/device/tile/keys.cuh"

namespace tessella::device {

// Keys in their own order.
struct AscendingTiles {
  __device__ int32_t tile_at(int32_t step) const { return step; }
  // `tiles` counted in steps. By a whole warp, lanes in pairs (KeyTiles of different rows); last: of the query tile.
  template <int TileKv, class Band>
  __device__ __forceinline__ KeyTiles start(const KeyTiles& tiles, const Band&, int32_t) {
    return tiles;
  }
};

// Where scores change with the distance to a key: from the tile at the last query's position down to the first one,
// then up from the one behind it. The largest scores mostly come first, so that maxima hardly grow (softmax_rows.cuh).
struct NearestTilesFirst {
  int32_t nearest = -1;  // the tile of step 0; -1: in their own order

  __device__ int32_t tile_at(int32_t step) const { return step <= nearest ? nearest - step : step; }

  template <int TileKv, class Band>
  __device__ __forceinline__ KeyTiles start(const KeyTiles& tiles, const Band& band, int32_t last) {
    // Only where all rows see the first key: then no row's tiles have a gap in this order.
    const int32_t end_from_first = __shfl_sync(kAllLanes, tiles.full_begin == 0 ? tiles.end : 0, 0);
    const auto position = static_cast<int32_t>(band.position(last));
    nearest = position < 0 ? -1 : min(position / TileKv, end_from_first - 1);
    if (nearest < 0) return tiles;
    const int32_t unseen = max(nearest + 1 - tiles.end, 0), not_full = max(nearest + 1 - tiles.full_end, 0);
    return {0, unseen, tiles.end + unseen, not_full, tiles.full_end + not_full};
  }
};

template <bool NearestFirst>
struct TileOrder : AscendingTiles {};
template <>
struct TileOrder<true> : NearestTilesFirst {};

}  // namespace tessella::device
