// The classes of a call's tiles (kernels/classify/classify.cuh), for element masks and bands that are not contiguous:
// how many maps there are and which map each batch and head uses.
#pragma once

#include <cstdint>

#include "cuda/launch/forward_tiles.hpp"
#include "operations/attention/arguments.hpp"
#include "portable/tile_map_params.hpp"

namespace tessella::cuda {

struct TileMap {
  int64_t tiles_q = 0;
  int64_t kv_tiles = 0;
  int64_t batches = 0;  // with maps of their own; 1: all use one; 0: there is no map
  int64_t heads = 0;

  int64_t maps() const { return batches * heads; }
  int64_t bytes() const { return maps() * tiles_q * kv_tiles; }  // one a tile
  int64_t seen_bytes() const { return bytes() * portable::kSeenWords * static_cast<int64_t>(sizeof(uint32_t)); }
  int64_t head_stride() const { return heads > 1 ? tiles_q * kv_tiles : 0; }
  int64_t batch_stride() const { return batches > 1 ? heads * tiles_q * kv_tiles : 0; }
};

// The tile map of one call, by the strides of its masks.
TileMap tile_map(const core::AttentionArguments& arguments, const ScoreTiles& tiles);

// The largest that a call within these bounds needs; reads no strides.
TileMap largest_tile_map(const core::AttentionShape& bounds, const ScoreTiles& tiles);

}  // namespace tessella::cuda
