// The portable vector forward kernels: one algorithm compiled by Highway for several instruction sets, each
// time for float and for double: Real is what a kernel computes in.
//
// Also lends its score and dropout chains to other kernels of the same instruction set, and has the rows of merge.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/kernel.hpp"
#include "core/plan.hpp"
#include "cpu/query_tile.hpp"
#include "cpu/tile_map.hpp"
#include "cpu/vector/merge_vector.hpp"
#include "cpu/work_tiles.hpp"
#include "operations/attention/arguments.hpp"

namespace tessella::cpu {

inline constexpr int kMaxHeadDim = 512;
inline constexpr int kQueryTileRows = 48;  // a multiple of three vectors of every instruction set
inline constexpr int kTileKeys = 64;
inline constexpr MapTiling kVectorMap = {kQueryTileRows, kTileKeys};

// A query tile and its softmax state: probabilities are 2^(scale_log2 (score - origin) - offset).
template <typename Real>
struct QueryTileState {
  QueryTile query_tile;
  // The lazy maximum is a whole number in `offset`, or the score itself in `origin` if no float holds that number.
  alignas(64) Real origin[kQueryTileRows];  // else 0
  alignas(64) Real offset[kQueryTileRows];  // else 0; -inf while a row has seen nothing
  alignas(64) Real sum[kQueryTileRows];
  int lanes = 0;              // rows rounded up to whole vectors: the row stride of the query tile's tiles
  bool are_products = false;  // scores are, as they come
  Real scale_log2 = 1;        // of the scores that softmax sees
  Real offset_limit = 0;      // offsets are below it in size
  double natural = 1;         // natural units in one of base 2
};

// Scratch of one thread. Sizes in Reals; head dims padded to 16.
template <typename Real>
struct VectorScratch {
  QueryTileState<Real>* query_tiles = nullptr;  // [query tiles of a work tile]
  Real* q = nullptr;                            // [query tiles of a work tile][head_dim_qk][kQueryTileRows]
  Real* o = nullptr;                            // [query tiles of a work tile][kQueryTileRows][head_dim_v]
  Real* k = nullptr;                            // [chunk keys][head_dim_qk]
  Real* v = nullptr;                            // panels of columns, [chunk keys][panel width] each
  Real* tile = nullptr;                         // [kTileKeys][kQueryTileRows] scores, then probabilities
  int64_t chunk_keys = 0;
  int64_t q_stride = 0;  // of one query tile in q
  int64_t k_stride = 0;
  int64_t o_stride = 0;
  int64_t bytes = 0;

  VectorScratch(const core::AttentionShape& shape, std::byte* base);
};

template <typename Real>
struct VectorKernel {
  void (*run_work_tile)(const core::AttentionArguments& arguments, const TileMap& map, const WorkTile& work_tile,
                        const VectorScratch<Real>& scratch) = nullptr;
  ClassifyTiles classify_tiles = nullptr;
  ScoreChain<Real> score_chain = nullptr;
  DropoutChain<Real> dropout_chain = nullptr;
  MergeRows<Real> merge_rows = nullptr;
};

enum class InstructionSet { avx512, avx2, sse4, baseline };

// The function of a set, of those of all.
template <typename Function>
Function of_set(InstructionSet set, Function avx512, Function avx2, Function sse4, Function baseline) {
  switch (set) {
    case InstructionSet::avx512: return avx512;
    case InstructionSet::avx2: return avx2;
    case InstructionSet::sse4: return sse4;
    case InstructionSet::baseline: break;
  }
  return baseline;
}

// Functions are null where the build does not have the instruction set. Says nothing about this machine.
template <typename Real>
const VectorKernel<Real>& vector_kernel(InstructionSet set);
// The same of each set, from a source of its own: kernel.cpp.in.
template <typename Real>
const VectorKernel<Real>& forward_avx512();
template <typename Real>
const VectorKernel<Real>& forward_avx2();
template <typename Real>
const VectorKernel<Real>& forward_sse4();
template <typename Real>
const VectorKernel<Real>& forward_baseline();

// "" or why this machine or build cannot run it.
std::string vector_unavailable(InstructionSet set);

// Work too small to wake a second thread for: about 10 microseconds of a forward pass.
bool runs_alone(const core::AttentionShape& shape);

template <typename Real>
core::WorkspaceSize vector_workspace(const core::AttentionShape& shape, int num_threads);
template <typename Real>
void run_vector(const VectorKernel<Real>& kernel, const core::AttentionArguments& arguments, const core::Plan& plan,
                core::Workspace workspace);

// Results of the rows of a query tile: output is factor * o, or 0 if the row saw no key; LSE in natural log, computed
// only if the call wants it.
template <typename Real>
struct RowEnds {
  Real factor[kQueryTileRows];
  Real lse[kQueryTileRows];
};
template <typename Real>
void end_rows(const QueryTileState<Real>& state, RowEnds<Real>& ends);

}  // namespace tessella::cpu
