// The portable vector backward kernels: one algorithm compiled for several instruction sets by Highway, over the blocks
// of backward_blocks.hpp. Also lends what it does to one tile to other kernels of the same instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/arguments.hpp"
#include "cpu/backward_blocks.hpp"
#include "cpu/vector/forward_vector.hpp"

namespace tessella::cpu {

// A tile of keys beside a strip, [keys][lanes].
struct BackwardTile {
  float* probs = nullptr;     // q.k, then probabilities with dropout's factors
  float* d_scores = nullptr;  // dO.v, then gradients of scores
  float* products = nullptr;  // q.k, for softcap's derivative
  float* kept = nullptr;      // dropout's factors

  void take(Memory& memory, const core::AttentionShape& shape, int64_t floats);
};

// Scratch of one thread. Sizes in floats; head dims padded to 16.
struct BackwardScratch {
  float* q_transposed = nullptr;      // [head_dim_qk][kStripRows]
  float* d_out_transposed = nullptr;  // [head_dim_v][kStripRows]
  float* q = nullptr;                 // [kStripRows][qk_stride]
  float* d_out = nullptr;             // [kStripRows][v_stride]
  float* dq = nullptr;                // [kStripRows][qk_stride] one block's part
  float* k = nullptr;                 // [block keys][qk_stride]
  float* v = nullptr;                 // [block keys][v_stride]
  float* dk = nullptr;                // [block keys][qk_stride]
  float* dv = nullptr;                // [block keys][v_stride]
  BackwardTile tile;                  // [kTileKeys][kStripRows]
  int64_t qk_stride = 0;
  int64_t v_stride = 0;
  int64_t bytes = 0;

  BackwardScratch(const core::AttentionShape& shape, std::byte* base);
};

BackwardTiling vector_tiling(const core::AttentionShape& shape);
int64_t vector_scratch_bytes(const core::AttentionShape& shape);

struct VectorBackward {
  BackwardKernel kernel;
  // From products to P with dropout's factors and to gradients of products, of keys [key_begin, key_begin + num_keys).
  void (*differentiate_tile)(QueryStrip& of, const BackwardTile& tile, int64_t key_begin, int num_keys) = nullptr;
  StoreGradient store_gradient = nullptr;
};

// Functions are null where the build does not have the instruction set.
const VectorBackward& vector_backward(InstructionSet set);

}  // namespace tessella::cpu
