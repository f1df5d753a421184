// The portable vector backward kernels: gradients by recomputation (FlashAttention-2, arXiv 2307.08691, algorithm 2),
// one algorithm compiled for several instruction sets by Highway.
//
// A work item is a block of keys of one KV head. It walks the strips of queries that see it, in order, keeps dK and dV
// of its keys, and adds its part to each strip's dQ. Blocks take turns at a strip, in the order of their keys, so sums
// have one order whatever the number of threads. docs/backward.md has the derivation.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/arguments.hpp"
#include "core/kernel.hpp"
#include "core/plan.hpp"
#include "cpu/vector/forward_vector.hpp"

namespace tessella::cpu {

// Blocks of keys over all sequences, the first of each sequence first: those that causal queries share most come first,
// and blocks that run side by side are of different heads as long as there are enough.
struct KeyBlock {
  int32_t batch_idx;
  int32_t idx;  // in its sequence
};

// Memory that the items of a call share. Sizes in Reals; head dims padded to 16. Rows are those of strips: row f of a
// (sequence, KV head) is query f / group of head kv_head * group + f % group; packed sequences follow one another.
template <typename Real>
struct BackwardShared {
  KeyBlock* blocks = nullptr;            // [most blocks]
  std::atomic<int32_t>* turn = nullptr;  // [heads_kv][strips] blocks whose part of dQ a strip has
  Real* delta = nullptr;                 // [heads_kv][rows] dO . out - dLSE
  Real* slope = nullptr;                 // [heads_kv][rows] sum of dS times ALiBi's distance
  Real* dq = nullptr;                    // [heads_kv][rows][head_dim_qk], not yet times scale; only where it is wanted
  std::atomic<int32_t>* is_over = nullptr;  // not 0 once the caller's flag was seen set
  int64_t block_keys = 0;
  int64_t rows = 0;
  int64_t strips = 0;
  int64_t qk_stride = 0;
  int64_t bytes = 0;

  BackwardShared(const core::AttentionShape& shape, std::byte* base);

  // Of a sequence: the first of its rows, and of its strips.
  int64_t first_row(const core::AttentionArguments& a, const core::Sequence& s) const {
    return (a.cu_seqlens_q ? s.row_q : s.batch_idx * a.seqlen_q) * a.group();
  }
  int64_t first_strip(const core::AttentionArguments& a, const core::Sequence& s) const {
    return first_row(a, s) / kStripRows + s.batch_idx;  // a sequence has one strip at most that is not full
  }
};

// Scratch of one thread.
template <typename Real>
struct BackwardScratch {
  Real* q_transposed = nullptr;      // [head_dim_qk][kStripRows]
  Real* d_out_transposed = nullptr;  // [head_dim_v][kStripRows]
  Real* q = nullptr;                 // [kStripRows][qk_stride]
  Real* d_out = nullptr;             // [kStripRows][v_stride]
  Real* dq = nullptr;                // [kStripRows][qk_stride] one block's part
  Real* k = nullptr;                 // [block keys][qk_stride]
  Real* v = nullptr;                 // [block keys][v_stride]
  Real* dk = nullptr;                // [block keys][qk_stride]
  Real* dv = nullptr;                // [block keys][v_stride]
  Real* probs = nullptr;             // [kTileKeys][kStripRows] scores, then probabilities
  Real* d_scores = nullptr;          // [kTileKeys][kStripRows] their gradients
  Real* products = nullptr;          // [kTileKeys][kStripRows] q.k, for softcap's derivative
  Real* kept = nullptr;              // [kTileKeys][kStripRows] dropout's factors
  int64_t qk_stride = 0;
  int64_t v_stride = 0;
  int64_t bytes = 0;

  BackwardScratch(const core::AttentionShape& shape, std::byte* base);
};

template <typename Real>
struct BackwardKernel {
  // delta of rows [begin, end) of a KV head of a sequence.
  void (*begin_rows)(const core::AttentionArguments& arguments, const core::Sequence& sequence, int64_t kv_head,
                     int64_t begin, int64_t end, const BackwardShared<Real>& shared) = nullptr;
  void (*run_block)(const core::AttentionArguments& arguments, const KeyBlock& block, int64_t kv_head,
                    const BackwardShared<Real>& shared, const BackwardScratch<Real>& scratch) = nullptr;
  // dQ of rows [begin, end), from the sums to the tensor.
  void (*end_rows)(const core::AttentionArguments& arguments, const core::Sequence& sequence, int64_t kv_head,
                   int64_t begin, int64_t end, const BackwardShared<Real>& shared) = nullptr;
  // One tile of d_bias: entry (b, head) of its axes, 0 where it is summed, of queries and slots from these on.
  void (*run_bias)(const core::AttentionArguments& arguments, int64_t b, int64_t head, int64_t query, int64_t slot,
                   const BackwardShared<Real>& shared, const BackwardScratch<Real>& scratch) = nullptr;
};
template <typename Real>
const BackwardKernel<Real>& backward_kernel(InstructionSet set);

template <typename Real>
core::WorkspaceSize backward_workspace(const core::AttentionShape& shape, int num_threads);
template <typename Real>
void run_backward(const BackwardKernel<Real>& kernel, const core::AttentionArguments& arguments, const core::Plan& plan,
                  core::Workspace workspace);

}  // namespace tessella::cpu
