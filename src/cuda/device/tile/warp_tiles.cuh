// How a block's warps divide tiles of q, k and v; each warp has its own rows. Used by forward_sm80 and the ladder's
// kernels.
#pragma once

#include "cuda/device/tile/sequence.cuh"
#include "cuda/device/tile/tile.cuh"
#include "cuda/device/tile/work_tile.cuh"
#include "cuda/device/tile/zero_rows.cuh"
#include "portable/forward_params.hpp"
#include "portable/score_config.hpp"

namespace tessella::device {

// C: a config with head dims, tiles and num_warps.
template <auto C>
struct WarpTiles {
  static_assert(portable::are_one(C.score.elements));
  static constexpr int kElementBytes = portable::size_bytes(C.score.elements.q);
  static constexpr int kThreads = C.num_warps * 32;
  static constexpr int kRowsOfWarp = C.tile_q / C.num_warps;
  static constexpr int kMBlocks = kRowsOfWarp / 16;
  static constexpr int kBlocks = C.tile_kv / 8;
  static constexpr int kBlocksV = C.head_dim_v / 8;
  using TileQ = Tile<C.tile_q, C.head_dim_qk, kElementBytes>;
  using TileK = Tile<C.tile_kv, C.head_dim_qk, kElementBytes>;
  using TileV = Tile<C.tile_kv, C.head_dim_v, kElementBytes>;
  using Scores = float[kMBlocks][kBlocks][4];
  static_assert(C.tile_q % (16 * C.num_warps) == 0, "a warp owns whole blocks of 16 rows");
  static_assert(C.tile_kv % 16 == 0 && C.head_dim_v % 16 == 0 && C.head_dim_qk % 16 == 0,
                "matrix loads take 16 rows or columns");

  // Writes out = 0 and lse = -inf for rows that belong to the sequence and to no query. The block of tile t takes tiles
  // t, t + tiles_q, ...
  __device__ __forceinline__ static void write_rows_without_query(const portable::ForwardParams& p,
                                                                  const WorkTile& work, const Sequence& sequence) {
    const ZeroRows<kThreads> rows = {
        p.output,
        work,
        sequence,
        work.slice_idx * C.head_dim_v,
        min(p.inputs.head_dim_v, (work.slice_idx + 1) * C.head_dim_v),
        C.score.elements.q == portable::Element::f32 || p.output.out_element == Element::f32};
    rows.write_without_query(C.tile_q, p.tiling.tiles_q);
  }
};

}  // namespace tessella::device
