// The vector kernels of few queries: split-KV attention (Flash-Decoding), compiled by Highway for several instruction
// sets, each time for float and for double.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/kernel.hpp"
#include "core/plan.hpp"
#include "cpu/decode_units.hpp"
#include "cpu/vector/forward_vector.hpp"
#include "operations/attention/arguments.hpp"

namespace tessella::cpu {

inline constexpr int kMaxDecodeHeadDim = 576;
// Rows of a sequence and KV head for which it is chosen where other kernels would compute them too (docs/cpu.md).
inline constexpr int64_t kMostDecodeRows = 16;
inline constexpr int64_t kMostDecodeRowsBesideAmx = 12;  // of bf16, which AMX's kernel computes
inline constexpr int64_t kMostDecodeRowsOfFewHeads = 64;
inline constexpr int64_t kFewHeads = 4;  // KV heads of all sequences
// More than these: plain calls have plans of lengths that are rounded up (core/fields.hpp), from there on beyond it
// too.
inline constexpr int64_t kManyKeys = 3584;
inline constexpr int kMostAhead = 64;  // rows that are fetched ahead
inline constexpr int kRunWords = kRunKeys / 64;

// Softmax state of a unit's rows, head by head, after some keys, and their sums of values: see QueryTileState.
template <typename Real>
struct RowSums {
  Real* data = nullptr;
  int64_t rows = 0;  // a multiple of a cache line

  static int64_t reals(int64_t rows, int64_t o_stride) { return rows * (3 + o_stride); }
  Real* origin() const { return data; }
  Real* offset() const { return data + rows; }
  Real* sum() const { return data + 2 * rows; }
  Real* o() const { return data + 3 * rows; }
};

// Sizes of a call.
struct DecodeLayout {
  int64_t rows = 0;  // of a unit, rounded up to a cache line of Reals
  int64_t query_tiles = 0;
  int64_t q_stride = 0;  // Reals of a row, for all types and instruction sets
  int64_t o_stride = 0;
  int64_t depth = 0;  // of a stack of results: those of the tree's levels
};

// Scratch of one thread.
template <typename Real>
struct DecodeScratch {
  DecodeLayout layout;
  QueryTileState<Real>* query_tiles = nullptr;
  Real* q = nullptr;              // [rows][q_stride]
  Real* scores = nullptr;         // [kQueryTileRows][kRunKeys], then probabilities
  Real* tile = nullptr;           // [kTileKeys][kQueryTileRows]
  Real* row = nullptr;            // of o, in the order of its columns
  const void** keys = nullptr;    // [2][kRunKeys + kMostAhead]: rows of K, of this run and head and the next
  const void** values = nullptr;  // [kRunKeys + kMostAhead]
  uint64_t* words = nullptr;      // [2][rows][kRunWords]: what element masks show, of this run and the next
  Real* key_scales = nullptr;     // [kRunKeys], of scores
  Real* value_scales = nullptr;   // [kRunKeys], of probabilities
  std::byte* zeros = nullptr;     // a row of K or V
  Real* stack = nullptr;          // [depth] of RowSums
  int64_t bytes = 0;

  DecodeScratch(const core::AttentionShape& shape, std::byte* base);
  RowSums<Real> sums(int64_t at) const {
    return {stack + at * RowSums<Real>::reals(layout.rows, layout.o_stride), layout.rows};
  }
};

// Data that is the same for all threads of a call.
template <typename Real>
struct DecodeCall {
  const core::AttentionArguments* arguments = nullptr;
  const VectorKernel<Real>* vector = nullptr;  // whose chains are used
  int64_t split_keys = 0;
  Real* slots = nullptr;                       // results of pieces
  std::atomic<int32_t>* unfinished = nullptr;  // pieces, of each unit
};

template <typename Real>
struct DecodeKernel {
  void (*run_piece)(const DecodeCall<Real>& call, const DecodePiece& piece,
                    const DecodeScratch<Real>& scratch) = nullptr;
};
// Null where the build does not have the instruction set.
template <typename Real>
const DecodeKernel<Real>& decode_kernel(InstructionSet set);
// The same of each set, from a source of its own: kernel.cpp.in.
template <typename Real>
const DecodeKernel<Real>& decode_avx512();
template <typename Real>
const DecodeKernel<Real>& decode_avx2();
template <typename Real>
const DecodeKernel<Real>& decode_sse4();
template <typename Real>
const DecodeKernel<Real>& decode_baseline();

// "" or why another kernel is for calls of this shape.
std::string decode_ineligible(const core::AttentionShape& shape);

template <typename Real>
core::WorkspaceSize decode_workspace(const core::AttentionShape& shape, int num_threads);
template <typename Real>
void run_decode(InstructionSet set, const core::AttentionArguments& arguments, const core::Plan& plan,
                core::Workspace workspace);

}  // namespace tessella::cpu
