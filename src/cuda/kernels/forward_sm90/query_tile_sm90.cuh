// A query tile of forward_sm90: what the warps of a block need to know of it, and how a warp finds that.
#pragma once

#include "cuda/device/score/mask.cuh"
#include "cuda/device/tile/keys.cuh"
#include "cuda/device/tile/sequence.cuh"
#include "cuda/device/tile/work_tile.cuh"
#include "cuda/kernels/forward_sm90/params.cuh"
#include "cuda/kernels/forward_sm90/tile_order.cuh"
#include "portable/query_tiles.hpp"

namespace tessella::device {

using portable::ForwardParams;
using portable::ForwardSm90Config;
using portable::MaskLevel;
using QueryRange = portable::QueryRange<int32_t>;

// The key tiles [first, end) that a warpgroup computes; all its rows see the tiles [full_begin, full_end) whole.
// skipped_before and skipped_after count the block's key tiles outside [first, end), which the warpgroup only releases.
struct WarpgroupTiles {
  int32_t first, end, full_begin, full_end, skipped_before, skipped_after;

  __device__ bool is_full(int32_t tile) const { return tile >= full_begin && tile < full_end; }
};

template <ForwardSm90Config C>
struct QueryTileSm90 {
  static constexpr int kRows = portable::kWarpgroupRows;
  static constexpr int kWarpgroups = C.tile_q / kRows;
  static constexpr bool kHasMap = C.score.mask == MaskLevel::bits;
  // Warpgroups skip tiles that none of their rows sees, where those are many: where the query tile has far more rows
  // than a warpgroup, or a key tile no more keys.
  static constexpr bool kSkips = kWarpgroups == 3 || C.tile_kv <= kRows;
  static constexpr bool kStartsNear =
      (C.score.alibi || C.score.score_mod) && C.score.mask == MaskLevel::band && !C.score.batch_invariant;
  using Order = TileOrder<kStartsNear>;

  int32_t batch_kv;  // of the tensors of its keys; -1: there is no query tile left
  WorkTile work;
  int32_t head_kv;
  BandedSequence<int32_t> sequence;
  QueryRange queries;
  int32_t seen_begin, seen_end;  // keys that some query of the sequence sees, beside those of keep_first
  Order order;
  KeyTiles tiles;      // of all rows, counted in the order
  const uint8_t* map;  // classes of the key tiles, with a tile map
  int32_t first_tile;  // that it visits; no less than tiles.end if there is none
  WarpgroupTiles of_warpgroup[kWarpgroups];

  __device__ bool exists() const { return batch_kv >= 0; }
  __device__ bool has_keys() const { return first_tile < tiles.end; }
  __device__ int32_t first_key(int32_t tile) const { return order.tile_at(tile) * C.tile_kv; }

  // By a whole warp: the rows of a tile of work that exists.
  __device__ __forceinline__ void find_rows(const ForwardParams& p, const WorkTile& of) {
    __syncwarp();  // all have read what was there
    if (threadIdx.x % 32 == 0) {
      batch_kv = C.paged ? 0 : batch_of_keys(p.sequences, of.batch_idx);
      work = of;
      sequence = device::sequence<int32_t>(p.sequences, p.masks, of.batch_idx);
      queries = portable::tile_queries(sequence.len_q, C.tile_q, of.tile_idx);
      tiles = {0, 0, 0, 0, 0};
      first_tile = 0;
      head_kv = p.sequences.group.quotient(work.head_idx);  // last, read back: loading warps have few registers
    }
    __syncwarp();
  }
  // By a whole warp, and then: their keys. Those of the tile's rows, of the sequence and of each warpgroup are found by
  // pairs of lanes side by side, for the first and the last row each.
  __device__ __forceinline__ void find_keys(const ForwardParams& p) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int32_t first = queries.first, last = queries.end - 1;
    if (first > last) return;
    // Lanes 2 i and 2 i + 1 find the keys of the first and last row of one range: query tile, sequence, each warpgroup.
    const int warpgroup = lane / 2 - 2;
    int32_t row = lane % 2 == 0 ? first : last;
    if (lane / 2 == 1) row = lane % 2 == 0 ? 0 : sequence.len_q - 1;
    if (warpgroup >= 0) row = min(first + warpgroup * kRows + lane % 2 * (kRows - 1), last);
    const KeyRange own = row_keys(sequence, row);
    const KeyRange next = {__shfl_down_sync(kAllLanes, own.begin, 1), __shfl_down_sync(kAllLanes, own.end, 1)};
    Order found;
    const KeyTiles mine =
        found.template start<C.tile_kv>(key_tiles<C.tile_kv>(own, next, p.masks.keep_first), sequence.band, last);
    if (lane == 0) {
      order = found;
      tiles = mine;
      first_tile = VisitedTiles<false>().next(mine, nullptr, 0);
      if constexpr (kHasMap) map = tile_classes(p.tile_map, work.batch_idx, work.head_idx, work.tile_idx);
    }
    if (lane == 2) {
      seen_begin = own.begin;
      seen_end = next.end;
    }
    __syncwarp();
    const bool has_rows = first + warpgroup * kRows <= last;
    WarpgroupTiles computed = of_rows(has_rows || !kSkips ? mine : KeyTiles{});
    if constexpr (kHasMap) leave_out_hidden(computed);
    if (lane % 2 == 0 && warpgroup >= 0 && warpgroup < kWarpgroups) of_warpgroup[warpgroup] = computed;
    __syncwarp();
  }

 private:
  __device__ __forceinline__ WarpgroupTiles of_rows(const KeyTiles& of) const {
    if (!kSkips) return {tiles.keep_first_end > 0 ? 0 : tiles.begin, tiles.end, of.full_begin, of.full_end, 0, 0};
    const int32_t first = of.keep_first_end > 0 ? 0 : of.begin, num_tiles = tiles.count_before(tiles.end);
    if (first >= of.end) return {0, 0, 0, 0, 0, num_tiles};
    return {
        first, of.end, of.full_begin, of.full_end, tiles.count_before(first), num_tiles - tiles.count_before(of.end)};
  }
  // Leaves the tiles that the map calls hidden out of the query tile and, in every lane, of a warpgroup's.
  __device__ __forceinline__ void leave_out_hidden(WarpgroupTiles& computed) {
    const WarpgroupTiles all = computed;
    computed.first = computed.end = computed.skipped_before = computed.skipped_after = 0;
    int32_t first = tiles.end;
#pragma unroll 1
    for (int32_t from = first_tile / 32 * 32; from < tiles.end; from += 32) {
      const auto below = [&](int32_t tile) {  // bits of the tiles below it
        return tile <= from ? 0 : tile - from >= 32 ? ~0u : (1u << (tile - from)) - 1;
      };
      const uint32_t visible = tile_bits(tiles, map, from).visible;
      const uint32_t inside = visible & below(all.end) & ~below(all.first);
      if (visible != 0) first = min(first, from + __ffs(static_cast<int>(visible)) - 1);
      if (inside != 0) {
        if (computed.end == 0) computed.first = from + __ffs(static_cast<int>(inside)) - 1;
        computed.end = from + 32 - __clz(static_cast<int>(inside));
      }
      computed.skipped_before += __popc(visible & below(all.first));
      computed.skipped_after += __popc(visible & ~below(all.end));
    }
    if (computed.end == 0) {
      computed.skipped_after += computed.skipped_before;
      computed.skipped_before = 0;
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) first_tile = first;
  }
};

// With a tile map, what warpgroups need to know of a key tile: its index and, below it, a bit that it is partial and
// two for each warpgroup: its rows see the tile whole, and it is the last that they compute.
template <ForwardSm90Config C>
struct TileSummary {
  static constexpr int kWarpgroups = QueryTileSm90<C>::kWarpgroups;
  static constexpr int kFlags = 1 + 2 * kWarpgroups;
  static_assert(portable::kHopperLongest / C.tile_kv < 1 << (32 - kFlags));
  uint32_t word;

  __device__ static TileSummary of(const QueryTileSm90<C>& query_tile, int32_t tile, bool is_partial) {
    uint32_t flags = is_partial ? 1 : 0;
#pragma unroll
    for (int i = 0; i < kWarpgroups; ++i) {
      const WarpgroupTiles& computed = query_tile.of_warpgroup[i];
      if (!is_partial && computed.is_full(tile)) flags |= 2u << i * 2;
      if (tile + 1 >= computed.end) flags |= 4u << i * 2;
    }
    return {static_cast<uint32_t>(tile) << kFlags | flags};
  }
  __device__ int32_t tile() const { return static_cast<int32_t>(word >> kFlags); }
  __device__ bool is_partial() const { return word % 2 != 0; }
  __device__ bool is_full(int warpgroup) const { return (word >> warpgroup * 2 & 2) != 0; }
  __device__ bool is_last(int warpgroup) const { return (word >> warpgroup * 2 & 4) != 0; }
};

}  // namespace tessella::device
