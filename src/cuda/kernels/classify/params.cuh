// The configuration and parameters of the passes over a mask (kernels/classify/classify.cuh).
#pragma once

#include "portable/arrays_params.hpp"
#include "portable/masks_params.hpp"
#include "portable/score_config.hpp"
#include "portable/sequences_params.hpp"
#include "portable/tile_map_params.hpp"

namespace tessella::portable {

inline constexpr int32_t kClassifyWarps = 4;                                // of a block, which reads a tile
inline constexpr int32_t kClassifyBytes = kClassifyWarps * kSeenWords * 8;  // of shared memory: the keys of each warp

// The map of a mask: for each batch and head of its own, each 64 queries and each 32 keys two words, what some query
// sees and what no query has hidden (device::KeyBits).
inline constexpr int32_t kMapQueries = 64;
inline constexpr int32_t kMapKeys = 128;  // of the tile that a block reads

struct ClassifyConfig {
  ScoreConfig masks;  // nothing but its masks
  int32_t tile_q = 0;
  int32_t tile_kv = 0;
  bool has_map = false;  // the mask's map is read, and not the mask
  int32_t blocks = 0;    // of a multiprocessor, at least; 0: as many as the assembler finds best
  bool operator==(const ClassifyConfig&) const = default;
};

struct ClassifyParams {
  SequencesParams sequences;
  MasksParams masks;
  ArraysParams arrays;
  TileMapParams tile_map;  // classify_tiles writes it; map_mask reads its strides and counts alone
  int32_t tiles_q;         // of the tile map
  uint32_t* mask_map;      // by batches and heads as the tile map; null: none
};

// It knows the tiles' sizes and the masks, but no element type and no head dim, so that one program serves many
// kernels.
constexpr ClassifyConfig classify_config(const ScoreConfig& score, int32_t tile_q, int32_t tile_kv) {
  ScoreConfig masks = masks_of(score);
  masks.mask = MaskLevel::bits;
  // For more blocks than these the assembler would spill a few registers.
  const bool has_ranges = masks.element_masks.key_ranges || masks.element_masks.query_ranges;
  const int32_t blocks = num_masks(masks) > 2 ? 2 : num_masks(masks) == 2 ? 4 : has_ranges ? 8 : 0;
  return {.masks = masks, .tile_q = tile_q, .tile_kv = tile_kv, .blocks = blocks};
}

}  // namespace tessella::portable
