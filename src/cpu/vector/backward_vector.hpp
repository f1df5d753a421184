// The portable vector backward kernels: one algorithm compiled for several instruction sets by Highway, over the blocks
// of backward_blocks.hpp. Also lends what it does to one tile to other kernels of the same instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/backward_blocks.hpp"
#include "cpu/memory.hpp"
#include "cpu/vector/forward_vector.hpp"
#include "operations/attention/shape.hpp"

namespace tessella::cpu {

// A tile of keys beside a query tile, [keys][lanes].
template <typename Real>
struct BackwardTile {
  Real* probs = nullptr;     // q.k, then probabilities with dropout's factors
  Real* d_scores = nullptr;  // dO.v, then gradients of scores
  Real* products = nullptr;  // q.k, for softcap's derivative
  Real* dropout = nullptr;   // dropout's factors

  void take(Memory& memory, const core::AttentionShape& shape, int64_t count);
};

// Scratch of one thread. Sizes in Reals; head dims padded to 16.
template <typename Real>
struct BackwardScratch {
  Real* q_transposed = nullptr;      // [head_dim_qk][kQueryTileRows]
  Real* d_out_transposed = nullptr;  // [head_dim_v][kQueryTileRows]
  Real* q = nullptr;                 // [kQueryTileRows][qk_stride]
  Real* d_out = nullptr;             // [kQueryTileRows][v_stride]
  Real* dq = nullptr;                // [kQueryTileRows][qk_stride] terms of one block
  Real* k = nullptr;                 // [block keys][qk_stride]
  Real* v = nullptr;                 // [block keys][v_stride]
  Real* dk = nullptr;                // [block keys][qk_stride]
  Real* dv = nullptr;                // [block keys][v_stride]
  BackwardTile<Real> tile;           // [kTileKeys][kQueryTileRows]
  int64_t qk_stride = 0;
  int64_t v_stride = 0;
  int64_t bytes = 0;

  BackwardScratch(const core::AttentionShape& shape, std::byte* base);
};

template <typename Real>
BackwardTiling vector_tiling(const core::AttentionShape& shape);
template <typename Real>
int64_t vector_scratch_bytes(const core::AttentionShape& shape);

template <typename Real>
struct VectorBackward {
  BackwardKernel<Real> kernel;
  // From products to P with dropout's factors and to gradients of products, of keys [key_begin, key_begin + num_keys).
  void (*differentiate_tile)(QueryTileRows<Real>& of, const BackwardTile<Real>& tile, int64_t key_begin,
                             int num_keys) = nullptr;
  StoreGradient<Real> store_gradient = nullptr;
};

// Functions are null where the build does not have the instruction set.
template <typename Real>
const VectorBackward<Real>& vector_backward(InstructionSet set);
// The same of each set, from a source of its own: kernel.cpp.in.
template <typename Real>
const VectorBackward<Real>& backward_avx512();
template <typename Real>
const VectorBackward<Real>& backward_avx2();
template <typename Real>
const VectorBackward<Real>& backward_sse4();
template <typename Real>
const VectorBackward<Real>& backward_baseline();

}  // namespace tessella::cpu
