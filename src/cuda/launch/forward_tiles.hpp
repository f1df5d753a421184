// The fields of a kernel's config that host code of all forward kernels reads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

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

// The smallest of the head dims that are compiled, in ascending order, that holds this one; else the largest.
inline int32_t compiled_head_dim(int64_t head_dim, std::initializer_list<int32_t> compiled) {
  const auto* smallest = std::ranges::find_if(compiled, [&](int32_t dim) { return head_dim <= dim; });
  return smallest == compiled.end() ? compiled.end()[-1] : *smallest;
}

// Blocks that the columns of v are divided over.
inline int32_t slices_v(const core::AttentionShape& shape, const ForwardTiles& tiles) {
  return static_cast<int32_t>((shape.head_dim_v + tiles.head_dim_v - 1) / tiles.head_dim_v);
}

}  // namespace tessella::cuda
