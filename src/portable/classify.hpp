// The configuration of the pass that classifies a mask's tiles (device/score/mask.hpp).
#pragma once

#include "portable/score_config.hpp"

namespace tessella::portable {

inline constexpr int32_t kClassifyWarps = 4;  // of a block, a tile each

struct ClassifyConfig {
  ScoreConfig masks;  // nothing but its masks
  int32_t tile_q = 0;
  int32_t tile_kv = 0;
  bool operator==(const ClassifyConfig&) const = default;
};

template <class Visit>
constexpr void fields(const ClassifyConfig& c, const Visit& visit) {
  visit("masks", c.masks);
  visit("tile_q", c.tile_q);
  visit("tile_kv", c.tile_kv);
}

// It knows the tiles' sizes and the masks, but no element type and no head dim, so that one program serves many
// kernels.
constexpr ClassifyConfig classify_config(const ScoreConfig& score, int32_t tile_q, int32_t tile_kv) {
  return {.masks = {.mask = MaskLevel::bits,
                    .documents = score.documents,
                    .dense_mask = score.dense_mask,
                    .block_map = score.block_map,
                    .draft_mask = score.draft_mask,
                    .mask_mod = score.mask_mod},
          .tile_q = tile_q,
          .tile_kv = tile_kv};
}

}  // namespace tessella::portable
