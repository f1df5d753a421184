// The classes of a call's tiles (kernels/classify/classify.cuh), for element masks and bands that are not contiguous:
// how many maps there are and which map each batch and head uses.
#pragma once

#include <cstdint>

#include "operations/attention/arguments.hpp"
#include "portable/score_config.hpp"
#include "portable/tile_map_params.hpp"

namespace tessella::cuda {

// What the map of a call depends on beside the call.
struct MapTiles {
  template <class Config>
  constexpr MapTiles(const Config& c)  // NOLINT(google-explicit-constructor): every kernel's config is one
      : mask(c.score.mask), tile_q(c.tile_q), tile_kv(c.tile_kv) {}
  constexpr MapTiles(portable::MaskLevel of, int32_t queries, int32_t keys)
      : mask(of), tile_q(queries), tile_kv(keys) {}

  portable::MaskLevel mask;
  int32_t tile_q, tile_kv;
};

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
TileMap tile_map(const core::AttentionArguments& arguments, const MapTiles& tiles);

// The largest that a call within these bounds needs; reads no strides.
TileMap largest_tile_map(const core::AttentionShape& bounds, const MapTiles& tiles);

}  // namespace tessella::cuda
