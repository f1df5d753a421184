// Where a lane of forward_sm90's multiplying warpgroups stands: its query tile and its rows there.
#pragma once

#include "cuda/kernels/forward_sm90/block_sm90.cuh"

namespace tessella::device {

template <ForwardSm90Config C>
struct LaneSm90 {
  using Block = BlockSm90<C>;
  using QueryTile = typename Block::QueryTile;

  const Block& block;
  int warpgroup, lane;
  int row_group;  // which 64 of the query tile's rows are the warpgroup's
  typename Block::QueryTiles query_tiles;

  __device__ __forceinline__ explicit LaneSm90(const Block& of)
      : block(of),
        warpgroup(static_cast<int>(threadIdx.x / 128) - 1),
        lane(static_cast<int>(threadIdx.x % 32)),
        row_group(warpgroup),
        query_tiles(of.query_tile_barriers()) {}

  // Waits for the query tile and its bounds. False if there is none left.
  __device__ __forceinline__ bool find_query_tile() const {
    query_tiles.template wait_full<Block::kBounds>();
    return current().exists();
  }

  __device__ const QueryTile& current() const { return block.query_tile(query_tiles); }
  __device__ const WarpgroupTiles& computed() const { return current().of_warpgroup[row_group]; }
  // Of the warpgroup's queries, the warp's first.
  __device__ static int warp_row() { return static_cast<int>(threadIdx.x / 32 % 4) * portable::kWarpRows; }
  // The warp's first query.
  __device__ int32_t first_of_warp() const { return current().queries.first + row_group * Block::kRows + warp_row(); }
  // The lane's rows 0 and 1, counted in the query tile.
  __device__ int row(int r) const { return row_group * Block::kRows + warp_row() + r * 8 + lane / 4; }
  // The keys of one of them.
  __device__ KeyRange keys(int r) const {
    const uint2 words = ptx::load_words(block.s_bounds(query_tiles, row(r)));
    return {static_cast<int32_t>(words.x), static_cast<int32_t>(words.y)};
  }
};

}  // namespace tessella::device
