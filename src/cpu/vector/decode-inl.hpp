// Split-KV attention of one piece (decode_units.hpp): Flash-Decoding's order, keys outside, few rows inside.
//
// Keys are taken in runs at absolute multiples of kRunKeys: first the run's keys, then its values, each read once from
// where they lie. Softmax is that of forward-inl.hpp with its lanes over keys: base 2, a lazy maximum of each row. The
// results of splits are merged as the nodes of a binary tree, so they are the same for any pieces.
#pragma once

#include <algorithm>
#include <cstring>
#include <optional>

#include "core/cancel.hpp"
#include "cpu/vector/decode_merge-inl.hpp"
#include "cpu/vector/decode_products-inl.hpp"
#include "cpu/vector/decode_rows-inl.hpp"
#include "cpu/vector/decode_softmax-inl.hpp"
#include "cpu/vector/decode_vector.hpp"
#include "cpu/vector/pairs-inl.hpp"
#include "cpu/vector/state-inl.hpp"
#include "hwy/highway.h"
#include "operations/attention/arguments.hpp"

HWY_BEFORE_NAMESPACE();
namespace tessella::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Query tile query_tile_idx of the head-th head.
template <typename Real>
void attend_query_tile(const Piece<Real>& of, int64_t head, int query_tile_idx, const Run& run, const void* const* keys,
                       RowSums<Real> sums) {
  const DecodeScratch<Real>& scratch = of.scratch;
  const DecodeLayout& layout = scratch.layout;
  const QueryTileState<Real>& state = scratch.query_tiles[head * of.num_query_tiles + query_tile_idx];
  const int num_rows = state.query_tile.num_rows;
  const int ahead = query_tile_idx == 0 ? of.ahead : 0;
  const int64_t first_row = head * of.num_rows + query_tile_idx * kQueryTileRows;
  of.products.multiply_keys(of, run, keys, ahead, first_row, num_rows);
  if (of.products.is_scaled) {
    scale_scores(scratch.scores, num_rows, run.scores_begin(), run.scores_end(), scratch.key_scales);
  }
  if (!state.are_products) {
    through_tiles(state, scratch.scores, run.begin, run.first, run.end, scratch.tile,
                  [&](const QueryTile& query_tile, int lanes, Real* tile, int64_t key_begin, int num_keys) {
                    of.call.vector->score_chain(query_tile, lanes, tile, key_begin, num_keys, false);
                  });
    hide_outside(scratch.scores, num_rows, run.first, run.end, run.scores_begin(), run.scores_end());
  } else {
    hide_by_band(state.query_tile, scratch.scores, run.begin, run.first, run.end, run.scores_begin(), run.scores_end());
  }
  if (run.words != nullptr) hide_by_words(scratch.scores, num_rows, run.words + first_row * kRunWords);
  const SoftmaxRows<Real> rows{sums.origin() + first_row, sums.offset() + first_row, sums.sum() + first_row,
                               sums.o() + first_row * layout.o_stride, layout.o_stride};
  if (!soften(state, rows, scratch.scores, run.scores_begin(), run.scores_end())) return;
  if (of.p.features.has(core::Feature::dropout)) {
    through_tiles(state, scratch.scores, run.begin, run.first, run.end, scratch.tile, of.call.vector->dropout_chain);
  }
  if (of.products.is_scaled) {
    scale_probs(scratch.scores, num_rows, run.scores_begin(), run.scores_end(), scratch.value_scales);
  }
  of.products.multiply_values(of, run, state.query_tile.kv_head, ahead, num_rows, rows.o);
}

// Computes a run for all heads. next: the next one, if there is one. keys: which half of scratch.keys holds the rows of
// this run's first head. Returns the half that holds those of the next run.
template <typename Real>
int attend_run(const Piece<Real>& of, Run run, const Run* next, int keys, RowSums<Real> sums) {
  const int64_t num_heads = of.piece.num_heads;
  for (int64_t head = 0; head < num_heads; ++head, keys = 1 - keys) {
    const int64_t kv_head = of.piece.kv_head + head;
    const void** own_keys = of.scratch.keys + keys * (kRunKeys + kMostAhead);
    const void** next_keys = of.scratch.keys + (1 - keys) * (kRunKeys + kMostAhead);
    find_run(of, of.p.v(), run, head, of.scratch.values);
    std::copy_n(of.scratch.values + run.first, kMostAhead, own_keys + run.scores_end());
    const bool is_last = head + 1 == num_heads;
    if (!is_last || next != nullptr) {
      const Run& behind = is_last ? *next : run;
      find_run(of, of.p.k(), behind, is_last ? 0 : head + 1, next_keys);
      std::copy_n(next_keys + behind.first, kMostAhead, of.scratch.values + run.end);
    }
    if (of.products.is_scaled) {
      find_scales(of, of.p.tensors[core::Name::k_scale], run, kv_head, of.scratch.key_scales);
      find_scales(of, of.p.tensors[core::Name::v_scale], run, kv_head, of.scratch.value_scales);
      run.has_whole_keys = !of.products.multiply_by_unit(of.scratch.key_scales);
      run.has_whole_values = !of.products.multiply_by_unit(of.scratch.value_scales);
    }
    uint64_t any[kRunWords];
    if (!any_of_rows(of, run, head, any)) continue;
    for (int query_tile = 0; query_tile < of.num_query_tiles; ++query_tile)
      attend_query_tile(of, head, query_tile, run, own_keys, sums);
  }
  return keys;
}

// False: the call was cancelled meanwhile. The piece's result is in sums(0).
template <typename Real>
bool attend_piece(Piece<Real>& of, Stack<Real>& stack) {
  const int64_t split_keys = of.call.split_keys;
  const int64_t end = of.piece.end_split * split_keys;
  uint64_t* words = of.scratch.words;
  const int64_t half_words = of.scratch.layout.rows * kRunWords;
  int half = 0;  // of words, for the next run
  // The run of the first visible key from this one on; its words go into the half that is free.
  const auto find_next = [&](int64_t key) HWY_ATTR -> std::optional<Run> {
    for (;; key = (key / kRunKeys + 1) * kRunKeys) {
      key = of.seen.next(key);
      if (key >= end) return std::nullopt;
      if (words == nullptr) return run_of(of.seen, key, nullptr);
      if (!find_words(of, key, words + half * half_words)) continue;
      const Run run = run_of(of.seen, key, words + half * half_words);
      half = 1 - half;
      return run;
    }
  };
  std::optional<Run> run = find_next(of.piece.first_split * split_keys);
  if (run) find_run(of, of.p.k(), *run, 0, of.scratch.keys);
  int keys = 0;
  while (run) {
    const int64_t split = run->begin / split_keys;
    const RowSums<Real> sums = stack.push(split, 0);
    clear_sums(sums, stack.num_rows, of.scratch.layout.o_stride);
    while (run && run->begin < (split + 1) * split_keys) {
      if (core::is_cancelled(of.p.cancel)) return false;
      const std::optional<Run> next = find_next(run->begin + kRunKeys);
      keys = attend_run(of, *run, next ? &*next : nullptr, keys, sums);
      run = next;
    }
  }
  stack.close();
  return true;
}

template <typename Real>
void begin_rows(Piece<Real>& of) {
  const DecodeScratch<Real>& scratch = of.scratch;
  of.num_query_tiles = static_cast<int>((of.num_rows + kQueryTileRows - 1) / kQueryTileRows);
  const int64_t row_bytes = core::bytes_of(of.p.k().dtype, std::max(of.p.head_dim_qk, of.p.head_dim_v));
  constexpr int64_t kBytesAhead = 8192;
  of.ahead = static_cast<int>(std::clamp<int64_t>(kBytesAhead / row_bytes, 4, kMostAhead));
  std::memset(scratch.zeros, 0, static_cast<size_t>(row_bytes));
  std::fill_n(scratch.row, scratch.layout.o_stride, Real{0});
  Real* to = scratch.q;
  for (int64_t at = 0; at < of.piece.num_heads * of.num_query_tiles; ++at) {
    QueryTileState<Real>& state = scratch.query_tiles[at];
    const int64_t first = at % of.num_query_tiles * kQueryTileRows;
    const auto rows = static_cast<int>(std::min<int64_t>(of.num_rows - first, kQueryTileRows));
    begin_state(of.p, of.s, of.piece.kv_head + at / of.num_query_tiles, of.piece.row_begin + first, rows, state);
    for (int row = 0; row < rows; ++row, to += scratch.layout.q_stride) {
      const std::byte* from =
          of.p.q().row(of.s.batch_idx, of.s.row_q + state.query_tile.query[row], state.query_tile.head[row]);
      of.products.load_query(of.p.dtype(), from, static_cast<int>(of.p.head_dim_qk), to);
    }
  }
}

// Results of all keys to out and lse.
template <typename Real>
void end_piece(const Piece<Real>& of, RowSums<Real> sums) {
  const int64_t o_stride = of.scratch.layout.o_stride;
  const int dim = static_cast<int>(of.p.head_dim_v);
  int64_t at = 0;
  for (int64_t query_tile = 0; query_tile < of.piece.num_heads * of.num_query_tiles; ++query_tile) {
    QueryTileState<Real>& state = of.scratch.query_tiles[query_tile];
    Real* of_query_tile = sums.o() + at * o_stride;
    for (int row = 0; row < state.query_tile.num_rows; ++row, ++at) {
      state.origin[row] = sums.origin()[at];
      state.offset[row] = sums.offset()[at];
      state.sum[row] = sums.sum()[at];
      Real* o = sums.o() + at * o_stride;
      of.products.order_columns(o, dim, of.scratch.row);
      std::copy_n(of.scratch.row, o_stride, o);
    }
    end_query_tile(state, of_query_tile, o_stride);
  }
}

// The last of a unit's pieces to end merges them all, in their order.
template <typename Real>
void end_unit(Piece<Real>& of, Stack<Real>& stack) {
  const DecodePiece& piece = of.piece;
  if (piece.num_pieces == 1) return end_piece(of, of.scratch.sums(0));
  const int64_t reals = RowSums<Real>::reals(of.scratch.layout.rows, of.scratch.layout.o_stride);
  std::copy_n(of.scratch.sums(0).data, reals, of.call.slots + piece.slot * reals);
  if (of.call.unfinished[piece.unit].fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  const Subtrees trees = subtrees(of.seen, of.call.split_keys, piece.level);
  for (int64_t idx = 0; idx < piece.num_pieces; ++idx) {
    std::copy_n(of.call.slots + (piece.first_slot + idx) * reals, reals, stack.push(trees.at(idx), piece.level).data);
  }
  stack.close();
  end_piece(of, of.scratch.sums(0));
}

// Rows [row_begin, row_end) of the piece's heads, which are no queries.
inline void fill_hidden_rows_of(const core::AttentionArguments& p, const DecodePiece& piece, int64_t row_begin,
                                int64_t row_end) {
  for (int64_t head = 0; head < piece.num_heads; ++head) {
    fill_hidden_rows(p, {piece.batch_idx, piece.kv_head + head, piece.row_begin, piece.num_rows}, row_begin, row_end);
  }
}

template <typename Real>
void run_piece(const DecodeCall<Real>& call, const DecodePiece& piece, const DecodeScratch<Real>& scratch) {
  const core::AttentionArguments& p = *call.arguments;
  const int64_t row_end = piece.row_begin + piece.num_rows;
  if (piece.batch_idx < 0) return fill_hidden_rows_of(p, piece, piece.row_begin, row_end);
  const core::Sequence s = core::sequence(p, piece.batch_idx);
  const int64_t num_rows = std::min(row_end, s.len_q * p.group()) - piece.row_begin;
  bool is_done = true;
  if (num_rows > 0) {
    const Products<Real>& products =
        *with_cached_elements<Real>(p.k().dtype, []<typename T>(const T*) { return &kProducts<T, Real>; });
    Piece<Real> of{
        call, p, s, piece, scratch, products, seen_keys(p, s, piece.row_begin, piece.row_begin + num_rows), num_rows};
    begin_rows(of);
    Stack<Real> stack{scratch, scratch.query_tiles[0].scale_log2, piece.num_heads * num_rows};
    is_done = attend_piece(of, stack);
    if (is_done) end_unit(of, stack);
  }
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  _mm256_zeroupper();  // as in forward-inl.hpp
#endif
  if (!is_done) throw core::Cancelled();
  if (num_rows < piece.num_rows && piece.slot == piece.first_slot) {
    fill_hidden_rows_of(p, piece, std::max(piece.row_begin, piece.row_begin + num_rows), row_end);
  }
}

template <typename Real>
inline constexpr DecodeKernel<Real> kDecodeKernel = {&run_piece<Real>};

}  // namespace HWY_NAMESPACE
}  // namespace tessella::cpu
HWY_AFTER_NAMESPACE();
