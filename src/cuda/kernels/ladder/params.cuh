// The configuration and parameters of the ladder's GPU kernels: a forward or backward kernel's arguments, and the
// memory that these algorithms need. Backward kernels are compiled for a BackwardSm80Config.
#pragma once

#include "cuda/kernels/forward_sm80/params.cuh"
#include "portable/backward_params.hpp"
#include "portable/forward_params.hpp"

namespace tessella::portable {

struct LadderConfig {
  ScoreConfig score;
  int32_t head_dim_qk = 0;  // as compiled: rows are padded to it with zeros
  int32_t head_dim_v = 0;   // columns of v that one thread block computes
  int32_t tile_q = 0;
  int32_t tile_kv = 0;
  int32_t num_warps = 0;
  bool vector_loads = true;  // rows of q, k and v start at multiples of 16 bytes and hold whole 16-byte chunks
  bool paged = false;        // k and v
  bool operator==(const LadderConfig&) const = default;
};

// Shared memory holds tiles of q, k and v.
constexpr int32_t shared_bytes(const LadderConfig& c) { return tile_bytes(c); }

struct LadderParams {
  ForwardParams forward;
  int32_t kv_tiles;  // of the longest sequence
  float* scratch;
};

// Rows and columns as standard attention's matrix of a head has them: whole tiles.
constexpr int64_t matrix_rows(const LadderConfig& c, const LadderParams& p) {
  return int64_t{p.forward.tiling.tiles_q} * c.tile_q;
}
constexpr int64_t matrix_columns(const LadderConfig& c, const LadderParams& p) {
  return int64_t{p.kv_tiles} * c.tile_kv;
}

struct LadderBackwardParams {
  BackwardParams backward;
  // A matrix for each query head of each sequence, with a row for each key and a column for each query: whole tiles, in
  // the type of q.
  void* probs;
  void* d_products;
};

}  // namespace tessella::portable
