// A warpgroup's walk over the key tiles of its query tile, and which keys of a tile its rows see.
#pragma once

#include "cuda/device/score/band_mask.cuh"
#include "cuda/kernels/forward_sm90/lane_sm90.cuh"

namespace tessella::device {

// What the lane's rows see of a tile by the band alone, as columns_below() has it. By a whole warp, most of whose tiles
// with masks begin behind the first keys of all rows.
template <ForwardSm90Config C>
__device__ __forceinline__ void columns_in_band(const LaneSm90<C>& at, int32_t tile, uint32_t (&columns)[2]) {
  const int32_t first_key = at.current().first_key(tile);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const KeyRange keys = at.keys(r);
    columns[r] = columns_below<C.tile_kv>(keys.end - first_key, at.lane);
    if (__any_sync(kAllLanes, keys.begin > first_key)) {
      const int32_t keep_first = at.block.p.forward.masks.keep_first;
      columns[r] &= columns_from<C.tile_kv>(keys.begin - first_key, keep_first - first_key, at.lane);
    }
  }
}

// By the band alone: tiles follow each other but for the gap behind those of keep_first.
template <ForwardSm90Config C>
struct BandWalk {
  using Block = BlockSm90<C>;
  static constexpr bool kKnowsInside = true;  // which tiles behind the current one are seen whole
  int32_t full_end;                           // tiles from the current one up to here are seen whole by the warpgroup

  // The first tile at or after `tile`.
  __device__ __forceinline__ int32_t enter(const LaneSm90<C>& at, const typename Block::KRing&, int32_t tile) {
    tile = VisitedTiles<false>().next(at.current().tiles, nullptr, tile);
    full_end = at.computed().is_full(tile) ? at.computed().full_end : tile;
    return tile;
  }
  __device__ __forceinline__ int32_t next(const LaneSm90<C>& at, const typename Block::KRing& k, int32_t tile) {
    return is_full(tile + 1) ? tile + 1 : enter(at, k, tile + 1);
  }
  __device__ bool is_full(int32_t tile) const { return tile < full_end; }
  __device__ __forceinline__ bool is_last(const LaneSm90<C>& at, int32_t tile) const {
    if (is_full(tile + 1)) return false;
    return VisitedTiles<false>().next(at.current().tiles, nullptr, tile + 1) >= at.computed().end;
  }
  __device__ __forceinline__ void find_columns(const LaneSm90<C>& at, int32_t tile, uint32_t (&columns)[2]) const {
    columns_in_band(at, tile, columns);
  }

  // Whether some query of the sequence sees each key of the tile, and the key `column` of it.
  __device__ __forceinline__ static bool all_are_seen(const LaneSm90<C>& at, const typename Block::VRing&,
                                                      int32_t tile) {
    const auto& of = at.current();
    const int32_t first = of.first_key(tile);
    return first >= of.seen_begin && first + C.tile_kv <= of.seen_end;
  }
  __device__ __forceinline__ static bool is_seen(const LaneSm90<C>& at, const typename Block::VRing&, int32_t tile,
                                                 int32_t column) {
    const auto& of = at.current();
    return KeyRange{of.seen_begin, of.seen_end}.sees(of.first_key(tile) + column, at.block.p.forward.masks.keep_first);
  }
};

// By a tile map: the stream of k says which tile comes next, and what the warpgroup sees of it.
template <ForwardSm90Config C>
struct MapWalk {
  using Block = BlockSm90<C>;
  static constexpr bool kKnowsInside = false;
  typename Block::Summary summary;  // of the current tile
  bool sees_all;
  uint32_t visible[2];  // columns of the lane's rows, as columns_below() has them, of a tile that is not seen whole

  __device__ __forceinline__ int32_t enter(const LaneSm90<C>& at, const typename Block::KRing& k, int32_t) {
    k.wait_full();
    summary = {ptx::load_word(at.block.s_summary(k))};
    const int32_t tile = summary.tile();
    sees_all = summary.is_full(at.row_group);
    if (!sees_all) find_visible(at, tile);  // before the scores take the registers
    return tile;
  }
  __device__ __forceinline__ int32_t next(const LaneSm90<C>& at, const typename Block::KRing& k, int32_t tile) {
    return enter(at, k, tile + 1);
  }
  __device__ bool is_full(int32_t) const { return sees_all; }
  __device__ bool is_last(const LaneSm90<C>& at, int32_t) const { return summary.is_last(at.row_group); }
  __device__ void find_columns(const LaneSm90<C>&, int32_t, uint32_t (&columns)[2]) const {
    columns[0] = visible[0];
    columns[1] = visible[1];
  }

  // Of the query tile's queries. v has landed.
  __device__ __forceinline__ static bool all_are_seen(const LaneSm90<C>& at, const typename Block::VRing& v, int32_t) {
    v.wait_full();
    const uint4 seen = ptx::load_chunk(at.block.s_seen_keys(v));
    return (seen.x & seen.y & seen.z & seen.w) == ~0u;
  }
  __device__ static bool is_seen(const LaneSm90<C>& at, const typename Block::VRing& v, int32_t, int32_t column) {
    return (ptx::load_word(at.block.s_seen_keys(v) + column / 32 * 4) >> column % 32 & 1) != 0;
  }

 private:
  __device__ __forceinline__ void find_visible(const LaneSm90<C>& at, int32_t tile) {
    columns_in_band(at, tile, visible);
    if (!summary.is_partial() || !__any_sync(kAllLanes, (visible[0] | visible[1]) != 0)) return;
    const auto& of = at.current();
    hide_by_elements<C.score, C.tile_kv>(at.block.p.forward.masks, at.block.p.forward.arrays, of.sequence,
                                         of.work.batch_idx, of.work.head_idx, at.first_of_warp(), of.first_key(tile),
                                         visible);
  }
};

template <ForwardSm90Config C, bool HasMap = BlockSm90<C>::kHasMap>
struct KeyWalk : BandWalk<C> {};
template <ForwardSm90Config C>
struct KeyWalk<C, true> : MapWalk<C> {};

}  // namespace tessella::device
