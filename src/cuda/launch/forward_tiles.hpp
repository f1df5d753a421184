// The fields of a kernel's config that host code of all forward kernels reads.
#pragma once

#include <cstdint>

#include "operations/attention/shape.hpp"
#include "portable/score_config.hpp"

namespace tessella::cuda {

struct ForwardTiles {
  template <class Config>
  ForwardTiles(const Config& c)  // NOLINT(google-explicit-constructor): every kernel's config is one
      : score(c.score), head_dim_v(c.head_dim_v), tile_q(c.tile_q), tile_kv(c.tile_kv) {}

  portable::ScoreConfig score;
  int32_t head_dim_v, tile_q, tile_kv;
};

// Blocks that the columns of v are divided over.
inline int32_t slices_v(const core::AttentionShape& shape, const ForwardTiles& tiles) {
  return static_cast<int32_t>((shape.head_dim_v + tiles.head_dim_v - 1) / tiles.head_dim_v);
}

}  // namespace tessella::cuda
