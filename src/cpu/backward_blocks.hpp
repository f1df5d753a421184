// The tasks of the CPU's backward kernels: gradients by recomputation (FlashAttention-2, arXiv 2307.08691, algorithm
// 2).
//
// A task is a block of keys of one KV head. It goes over the query tiles that see it, in order, sums dK and dV of its
// keys, and adds to each query tile's dQ. Blocks add to a query tile in the order of their keys, so sums have one order
// for any number of threads. docs/backward.md has the derivation.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>

#include "core/kernel.hpp"
#include "core/plan.hpp"
#include "cpu/query_tile.hpp"
#include "cpu/tile_map.hpp"
#include "operations/attention/arguments.hpp"
#include "operations/attention/sequence.hpp"

namespace tessella::cpu {

// Sizes of a kernel's tasks.
struct BackwardTiling {
  int64_t block_keys;  // of a task
  int64_t query_tile_rows;
  int64_t qk_stride;      // of a row of dQ's sums
  bool pads_query_tiles;  // dQ's sums have whole query tiles
  int tile_keys;          // that are computed together

  MapTiling map() const { return {static_cast<int>(query_tile_rows), tile_keys}; }
};

// Blocks of keys over all sequences, the first block of each sequence first: under a causal mask it has the most
// queries. Blocks that run at the same time are of different heads if there are enough heads.
struct KeyBlock {
  int32_t batch_idx;
  int32_t idx;  // in its sequence
};

// Memory that all tasks of a call use, in the kernel's real type. Rows are those of query tiles: row f of a (sequence,
// KV head) is query f / group of head kv_head * group + f % group; packed sequences follow one another.
template <typename Real>
struct BackwardShared {
  KeyBlock* blocks = nullptr;               // [most blocks]
  std::atomic<int32_t>* turn = nullptr;     // [heads_kv][query tiles] the last block that has added to its dQ, plus one
  Real* lse = nullptr;                      // [heads_kv][rows] natural; +inf for a row that sees no key
  Real* delta = nullptr;                    // [heads_kv][rows] dO . out - dLSE
  Real* slope = nullptr;                    // [heads_kv][rows] sum of dS times ALiBi's distance
  Real* dq = nullptr;                       // sums of dQ, not yet times scale; only where it is wanted:
                                            // [heads_kv][rows][qk_stride], or query tiles as the kernel lays them
  std::atomic<int32_t>* is_over = nullptr;  // not 0 once the caller's flag was seen set
  BackwardTiling tiling;
  TileMap map;
  int64_t rows = 0;
  int64_t query_tiles = 0;
  int64_t dq_count = 0;
  int64_t bytes = 0;

  BackwardShared(const core::AttentionShape& shape, const BackwardTiling& tiling, std::byte* base);

  // A sequence's first row, and its first query tile.
  int64_t first_row(const core::AttentionArguments& a, const core::Sequence& s) const {
    return (a.cu_seqlens_q ? s.row_q : s.batch_idx * a.seqlen_q) * a.group();
  }
  int64_t first_query_tile(const core::AttentionArguments& a, const core::Sequence& s) const {
    return first_row(a, s) / tiling.query_tile_rows +
           s.batch_idx;  // a sequence has one query tile at most that is not full
  }
};

// What a query tile's rows have of BackwardShared.
template <typename Real>
struct RowData {
  const Real* lse;
  const Real* delta;
};

// The queries of a query tile beside a block of keys.
template <typename Real>
struct QueryTileRows {
  QueryTile query_tile;
  alignas(64) Real lse[kMaxQueryTileRows];    // natural; +inf for an idle row
  alignas(64) Real delta[kMaxQueryTileRows];  // dO . out - dLSE
  alignas(64) Real slope[kMaxQueryTileRows];  // sum of dS times ALiBi's distance
  int lanes = 0;

  // Sets lse, delta and slope, and finds the addresses of q and dO. Those of a row that sees no key are null: zeros
  // stand for its values, which may be NaN.
  void begin(const RowData<Real>& rows, const std::byte** q, const std::byte** d_out);
};

// A block's turn at a query tile: the number of the block that has it just before, plus one; 0 if there is none. Blocks
// that the query tile does not see have no turn.
inline int32_t turn_of(int32_t block, const QueryTile& query_tile, int64_t block_keys) {
  const auto keep_end = static_cast<int32_t>((query_tile.keep_end + block_keys - 1) / block_keys);
  const auto band_begin = static_cast<int32_t>(query_tile.keys_begin / block_keys);
  for (; block > 0; --block) {
    if (block <= band_begin && block > keep_end) block = keep_end;  // none is seen in between
    if (block > 0 && !query_tile.hides((block - 1) * block_keys, block * block_keys)) break;
  }
  return std::max(block, 0);
}

// True once the caller's flag was seen set. Stays so, as blocks wait for one another.
template <typename Real>
bool is_over(const core::AttentionArguments& p, const BackwardShared<Real>& shared);

// Waits until the block before has added to a query tile. Returns false if the call was cancelled or failed.
template <typename Real>
bool wait_for_turn(const std::atomic<int32_t>& turn, int32_t expected, const core::AttentionArguments& p,
                   const BackwardShared<Real>& shared);

// The gradients that blocks of keys have to do with.
struct Wanted {
  bool dq, dk, dv, slopes;
  explicit Wanted(const core::AttentionArguments& p)
      : dq(p.wants(core::Name::dq)),
        dk(p.wants(core::Name::dk)),
        dv(p.wants(core::Name::dv)),
        slopes(p.features.has(core::Feature::d_alibi_slopes)) {}
};

// A block of keys of one KV head at work.
template <typename Real>
struct BlockWork {
  const core::AttentionArguments& p;
  const core::Sequence s;
  const int32_t idx;
  const int64_t kv_head;
  const int64_t key_begin, key_end;
  const Wanted wants;

  BlockWork(const core::AttentionArguments& arguments, const KeyBlock& block, int64_t head,
            const BackwardShared<Real>& shared)
      : p(arguments),
        s(core::sequence(p, block.batch_idx)),
        idx(block.idx),
        kv_head(head),
        key_begin(idx * shared.tiling.block_keys),
        key_end(std::min(s.len_kv, key_begin + shared.tiling.block_keys)),
        wants(p) {}
  int num_keys() const { return static_cast<int>(key_end - key_begin); }
};

// The query tiles that see some key of the block, in order: compute(query_tile, row data) has all but dQ's sums and may
// run beside other blocks; add_dq(query_tile, first row or query tile of dQ's sums) follows in the block's turn. lanes:
// of a query tile, a multiple of this. False where the call is over.
template <typename Real, typename Compute, typename AddDq>
bool walk_query_tiles(const BlockWork<Real>& block, const BackwardShared<Real>& shared, int lanes, Compute&& compute,
                      AddDq&& add_dq) {
  const core::AttentionArguments& p = block.p;
  const int64_t rows = block.s.len_q * p.group();
  const int64_t first_row = block.kv_head * shared.rows + shared.first_row(p, block.s);
  const int64_t first_query_tile = block.kv_head * shared.query_tiles + shared.first_query_tile(p, block.s);
  QueryTileRows<Real> of;
  for (int64_t row = 0, n = 0; row < rows; row += shared.tiling.query_tile_rows, ++n) {
    if (shared.map.hides(block.s, block.kv_head, n, block.key_begin, block.key_end)) continue;
    const int num_rows = static_cast<int>(std::min(rows - row, shared.tiling.query_tile_rows));
    of.lanes = (num_rows + lanes - 1) / lanes * lanes;
    fill_query_tile(of.query_tile, p, block.s, block.kv_head, row, num_rows, of.lanes);
    of.query_tile.classes = shared.map.classes(block.s, block.kv_head, n);
    of.query_tile.tile_keys = shared.map.tile_keys();
    if (of.query_tile.hides(block.key_begin, block.key_end)) continue;
    if (is_over(p, shared)) return false;
    compute(of, RowData<Real>{shared.lse + first_row + row, shared.delta + first_row + row});
    if (!block.wants.dq && !block.wants.slopes) continue;
    std::atomic<int32_t>& turn = shared.turn[first_query_tile + n];
    if (!wait_for_turn(turn, turn_of(block.idx, of.query_tile, shared.tiling.block_keys), p, shared)) return false;
    if (block.wants.dq) add_dq(of, shared.tiling.pads_query_tiles ? first_query_tile + n : first_row + row);
    for (int r = 0; block.wants.slopes && r < num_rows; ++r) shared.slope[first_row + row + r] += of.slope[r];
    turn.store(block.idx + 1, std::memory_order_release);
  }
  return true;
}

// to = factor * from, and what is there where the gradient accumulates. from is 64-byte aligned, padded to 16.
template <typename Real>
using StoreGradient = void (*)(const Real* from, std::type_identity_t<Real> factor, int64_t count, core::DType dtype,
                               bool accumulates, std::byte* to);

// dK and dV of the block: row_of(name, key) has the sums of its key-th row.
template <typename Real, typename RowOf>
void store_block(const BlockWork<Real>& block, StoreGradient<Real> store, RowOf&& row_of) {
  const core::AttentionArguments& p = block.p;
  for (int key = 0; key < block.num_keys(); ++key) {
    for (const auto& [name, gradient, factor, dim] :
         {std::tuple{core::Name::dk, core::Gradient::dk, p.scale, p.head_dim_qk},
          {core::Name::dv, core::Gradient::dv, 1.0f, p.head_dim_v}}) {
      const core::Operand& to = p.tensors[name];
      if (to.data == nullptr) continue;
      store(row_of(name, key), factor, dim, to.dtype, p.accumulates(gradient),
            to.row(block.s.batch_idx, block.s.row_kv + block.key_begin + key, block.kv_head));
    }
  }
}

template <typename Real>
struct BackwardKernel {
  BackwardTiling (*tiling)(const core::AttentionShape& shape) = nullptr;
  int64_t (*scratch_bytes)(const core::AttentionShape& shape) = nullptr;  // of one thread
  ClassifyTiles classify_tiles = nullptr;
  // LSE and delta of rows [begin, end) of a KV head of a sequence.
  void (*begin_rows)(const core::AttentionArguments& arguments, const core::Sequence& sequence, int64_t kv_head,
                     int64_t begin, int64_t end, const BackwardShared<Real>& shared) = nullptr;
  void (*run_block)(const core::AttentionArguments& arguments, const KeyBlock& block, int64_t kv_head,
                    const BackwardShared<Real>& shared, std::byte* scratch) = nullptr;
  // dQ of rows [begin, end), from the sums to the tensor. begin is a multiple of the query tiles' rows where they are
  // padded.
  void (*end_rows)(const core::AttentionArguments& arguments, const core::Sequence& sequence, int64_t kv_head,
                   int64_t begin, int64_t end, const BackwardShared<Real>& shared) = nullptr;
  // One tile of d_bias: entry (b, head) of its axes, 0 where it is summed, of kQueryTileRows queries and kTileKeys
  // slots from these on.
  void (*run_bias)(const core::AttentionArguments& arguments, int64_t b, int64_t head, int64_t query, int64_t slot,
                   const BackwardShared<Real>& shared, std::byte* scratch) = nullptr;
};

template <typename Real>
std::string describe_backward(const BackwardKernel<Real>& kernel, const core::AttentionShape& shape, int num_threads);
template <typename Real>
core::WorkspaceSize backward_workspace(const BackwardKernel<Real>& kernel, const core::AttentionShape& shape,
                                       int num_threads);
template <typename Real>
void run_backward(const BackwardKernel<Real>& kernel, const core::AttentionArguments& arguments, const core::Plan& plan,
                  core::Workspace workspace);

}  // namespace tessella::cpu
