// The tile map, as a GPU kernel's parameters: what is known of each tile of scores where masks are no intervals.
#pragma once

#include "portable/integers.hpp"

namespace tessella::portable {

inline constexpr int32_t kSeenWords = 4;

struct TileMapParams {
  // TileClass of each tile, (batch, head, q tile, kv tile); stride 0 on an axis if all batches or heads use the same.
  uint8_t* classes;
  int64_t batch_stride;
  int64_t head_stride;
  // For each tile: kSeenWords words, a bit for each key, set if some query of the tile sees the key, band included.
  // Bits past the tile's keys are 1. Null: not wanted.
  uint32_t* seen_keys;
  int32_t kv_tiles;  // of a row
};

}  // namespace tessella::portable
