// Arguments of the ladder's kernels on a GPU: those of a forward kernel, and the memory that these algorithms keep.
#pragma once

#include "portable/forward_config.hpp"
#include "portable/forward_params.hpp"

namespace tessella::portable {

struct LadderParams {
  ForwardParams forward;
  float* scratch;
};

// Rows and columns as standard attention's matrix of a head has them: whole tiles.
constexpr int64_t matrix_rows(const ForwardConfig& c, const ForwardParams& p) { return int64_t{p.tiles_q} * c.tile_q; }
constexpr int64_t matrix_columns(const ForwardConfig& c, const ForwardParams& p) {
  return int64_t{p.kv_tiles} * c.tile_kv;
}

}  // namespace tessella::portable
