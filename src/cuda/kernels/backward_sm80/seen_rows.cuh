// Which queries see a key at all. With a sink LSE does not say it: it is finite for every query.
#pragma once

#include "cuda/device/score/mask.cuh"
#include "cuda/device/tile/keys.cuh"

namespace tessella::device {

__device__ __forceinline__ bool has_keys(const KeyRange& keys, int32_t keep_first) {
  return keys.begin < keys.end || min(keep_first, keys.end) > 0;
}

// True if the element masks show the query one of the keys that its band leaves. classes: of the query's tile. A whole
// warp calls it.
template <ScoreConfig C, int TileKv>
__device__ __forceinline__ bool sees_element(const portable::MasksParams& masks, const portable::ArraysParams& arrays,
                                             const Sequence& s, int32_t batch_idx, int32_t head_idx, int32_t query,
                                             const KeyRange& keys, const uint8_t* classes) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const KeyTiles tiles = key_tiles<TileKv>(keys, keys, masks.keep_first);
  VisitedTiles<true> visited;
#pragma unroll 1
  for (int32_t tile = visited.next(tiles, classes, 0); tile < tiles.end;
       tile = visited.next(tiles, classes, tile + 1)) {
#pragma unroll 1
    for (int32_t first = tile * TileKv; first < (tile + 1) * TileKv; first += 32) {
      const int32_t key = first + lane;
      const bool is_seen =
          keys.sees(key, masks.keep_first) && is_visible<C>(masks, arrays, s, batch_idx, head_idx, query, key);
      if (__any_sync(kAllLanes, is_seen)) return true;
    }
  }
  return false;
}

}  // namespace tessella::device
