// Forward attention of one work tile in vectors: FlashAttention-2 order, keys outside, query tiles inside.
//
// Keys are taken in chunks that stay in the level-2 cache and are converted once for all query tiles of the work tile;
// within a chunk, tiles of kTileKeys keys at absolute multiples of kTileKeys, so a row's result does not depend on work
// tiles. Softmax works in base 2 with a lazy maximum: m is an integer, raised only when a score exceeds it by 8, so
// rescaling is exact and rare. One FMA scales a score to base 2 and subtracts m: if the scaled score were
// rounded first, a score of 100 would err by 2^-17. Without FMA, or if m is too large for an exact integer, m is the
// score itself and is subtracted before scaling.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>

#include "core/cancel.hpp"
#include "cpu/vector/chunk-inl.hpp"
#include "cpu/vector/classify-inl.hpp"
#include "cpu/vector/convert-inl.hpp"
#include "cpu/vector/exp2-inl.hpp"
#include "cpu/vector/forward_vector.hpp"
#include "cpu/vector/merge-inl.hpp"
#include "cpu/vector/score-inl.hpp"
#include "cpu/vector/state-inl.hpp"
#include "cpu/vector/tiles-inl.hpp"
#include "hwy/highway.h"
#include "operations/attention/arguments.hpp"

HWY_BEFORE_NAMESPACE();
namespace tessella::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Rows [row_begin, row_begin + num_rows) ready to start: bands, Q^T, empty softmax state.
template <typename T, typename Real>
void begin_query_tile(const core::AttentionArguments& p, const core::Sequence& s, const TileMap& map,
                      const WorkTile& work_tile, int64_t row_begin, int num_rows, const VectorScratch<Real>& scratch,
                      QueryTileState<Real>& state, Real* q, Real* o) {
  begin_state(p, s, work_tile.kv_head, row_begin, num_rows, state);
  state.query_tile.classes = map.classes(s, work_tile.kv_head, row_begin / kQueryTileRows);
  state.query_tile.tile_keys = kTileKeys;
  const T* rows[kQueryTileRows] = {};
  for (int r = 0; r < state.lanes; ++r) {
    rows[r] = reinterpret_cast<const T*>(
        p.q().row(s.batch_idx, s.row_q + state.query_tile.query[r], state.query_tile.head[r]));
  }
  load_transposed(rows, state.lanes, static_cast<int>(p.head_dim_qk), 1, q);
  std::memset(o, 0, sizeof(Real) * static_cast<size_t>(num_rows * scratch.o_stride));
}

// max[row] = largest of num_keys scores.
template <typename Real>
void find_max(const Real* scores, int lanes, int num_keys, Real* max) {
  const Tag<Real> d;
  for (int row = 0; row < lanes; row += kLanes<Real>) {
    Vec<Real> largest = hn::Set(d, kMinusInfinity<Real>);
    for (int key = 0; key < num_keys; ++key) largest = hn::Max(hn::Load(d, scores + key * lanes + row), largest);
    hn::Store(largest, d, max + row);
  }
}

// Maxima may lose NaN, so a tile without a maximum is hidden only if it holds none: masked scores are -inf by now.
template <typename Real>
bool has_nan(const Real* scores, int lanes, int num_keys) {
  const Tag<Real> d;
  Mask<Real> found = hn::IsNaN(hn::Zero(d));
  for (int i = 0; i < num_keys * lanes; i += kLanes<Real>) found = hn::Or(found, hn::IsNaN(hn::Load(d, scores + i)));
  return !hn::AllFalse(d, found);
}

// Raises the maximum of rows whose scores exceed it by more than 8 and rescales their sums. False if no row of the
// query tile has a maximum above -inf in this tile.
template <typename Real>
bool raise_max(QueryTileState<Real>& state, const Real* tile_max, Real* o, int64_t o_stride) {
  const Tag<Real> d;
  const Vec<Real> scale_log2 = hn::Set(d, state.scale_log2);
  const Vec<Real> lowest = hn::Set(d, kMinusInfinity<Real>);
  const auto is_behind = [&](int row, Vec<Real> found) HWY_ATTR {
    const Vec<Real> offset = hn::Load(d, state.offset + row);
    const Vec<Real> exponent = hn::Mul(hn::Sub(found, hn::Load(d, state.origin + row)), scale_log2);
    const Mask<Real> begins = hn::And(hn::Eq(offset, lowest), hn::Gt(found, lowest));  // whose exponent may be -inf
    return hn::Or(begins, hn::Gt(exponent, hn::Add(offset, hn::Set(d, 8))));
  };
  bool any_raised = false;
  bool any_visible = false;
  for (int row = 0; row < state.lanes; row += kLanes<Real>) {
    const Vec<Real> found = hn::Load(d, tile_max + row);
    any_raised |= !hn::AllFalse(d, is_behind(row, found));
    any_visible |= !hn::AllTrue(d, hn::Eq(found, lowest));
  }
  if (!any_raised) return any_visible;
  alignas(64) Real factor[kQueryTileRows];
  for (int row = 0; row < state.lanes; row += kLanes<Real>) {
    const Vec<Real> found = hn::Load(d, tile_max + row);
    const Vec<Real> origin = hn::Load(d, state.origin + row);
    const Vec<Real> offset = hn::Load(d, state.offset + row);
    const Mask<Real> raised = is_behind(row, found);
    const Vec<Real> whole = hn::Ceil(hn::Mul(found, scale_log2));
    const Mask<Real> is_offset = hn::Lt(hn::Abs(whole), hn::Set(d, state.offset_limit));
    const Vec<Real> new_origin = hn::IfThenElse(raised, hn::IfThenZeroElse(is_offset, found), origin);
    const Vec<Real> new_offset = hn::IfThenElse(raised, hn::IfThenElseZero(is_offset, whole), offset);
    const Vec<Real> exponent = hn::MulAdd(hn::Sub(origin, new_origin), scale_log2, hn::Sub(offset, new_offset));
    const Vec<Real> power = hn::IfThenZeroElse(hn::Eq(offset, lowest), exp2(exponent));
    const Vec<Real> scale = hn::IfThenElse(raised, power, hn::Set(d, 1));
    hn::Store(new_origin, d, state.origin + row);
    hn::Store(new_offset, d, state.offset + row);
    hn::Store(scale, d, factor + row);
    hn::Store(hn::Mul(hn::Load(d, state.sum + row), scale), d, state.sum + row);
  }
  for (int row = 0; row < state.query_tile.num_rows; ++row) {
    if (factor[row] == 1) continue;
    const Vec<Real> scale = hn::Set(d, factor[row]);
    Real* to = o + row * o_stride;
    for (int64_t i = 0; i < o_stride; i += kLanes<Real>) hn::Store(hn::Mul(hn::Load(d, to + i), scale), d, to + i);
  }
  return any_visible;
}

// tile = 2^(scale_log2 (tile - origin) - offset); adds it to the sums. The sum of a tile is formed apart to keep
// roundings short.
template <typename Real>
void exponentiate(QueryTileState<Real>& state, Real* tile, int num_keys) {
  const Tag<Real> d;
  const int lanes = state.lanes;
  const Vec<Real> scale = hn::Set(d, state.scale_log2);
  for (int row = 0; row < lanes; row += kLanes<Real>) {
    const Vec<Real> origin = hn::Load(d, state.origin + row);
    const Vec<Real> offset = hn::Load(d, state.offset + row);
    const Vec<Real> base = hn::IfThenZeroElse(hn::Eq(offset, hn::Set(d, kMinusInfinity<Real>)), offset);
    Vec<Real> even = hn::Zero(d);
    Vec<Real> odd = hn::Zero(d);
    Real* score = tile + row;
    if (!hn::AllTrue(d, hn::Eq(origin, hn::Zero(d)))) {
      for (int i = 0; i < num_keys; ++i) {
        hn::Store(hn::Sub(hn::Load(d, score + i * lanes), origin), d, score + i * lanes);
      }
    }
    int key = 0;
    for (; key + 2 <= num_keys; key += 2, score += 2 * lanes) {
      const Vec<Real> first = exp2(hn::MulSub(hn::Load(d, score), scale, base));
      const Vec<Real> second = exp2(hn::MulSub(hn::Load(d, score + lanes), scale, base));
      hn::Store(first, d, score);
      hn::Store(second, d, score + lanes);
      even = hn::Add(even, first);
      odd = hn::Add(odd, second);
    }
    if (key < num_keys) {
      const Vec<Real> last = exp2(hn::MulSub(hn::Load(d, score), scale, base));
      hn::Store(last, d, score);
      even = hn::Add(even, last);
    }
    hn::Store(hn::Add(hn::Load(d, state.sum + row), hn::Add(even, odd)), d, state.sum + row);
  }
}

// Keys [key_begin, key_end) of one tile for one query tile; chunk_key = their position in the chunk.
template <typename Real>
void attend_tile(QueryTileState<Real>& state, const Real* q, Real* o, const VectorScratch<Real>& scratch,
                 int64_t key_begin, int64_t key_end, int64_t chunk_key) {
  const core::AttentionArguments& p = *state.query_tile.arguments;
  const QueryTile& query_tile = state.query_tile;
  const int num_keys = static_cast<int>(key_end - key_begin);
  const int lanes = state.lanes;
  alignas(64) Real tile_max[kQueryTileRows];
  for (int row = 0; row < lanes; ++row) tile_max[row] = kMinusInfinity<Real>;
  multiply_scores(scratch.k + chunk_key * scratch.k_stride, scratch.k_stride, q, lanes, static_cast<int>(p.head_dim_qk),
                  num_keys, scratch.tile, tile_max);
  const bool applies_element_masks = query_tile.class_of(key_begin, key_end) == TileClass::partial;
  if (!state.are_products || applies_element_masks) {
    score_chain(query_tile, lanes, scratch.tile, key_begin, num_keys, applies_element_masks);
    find_max(scratch.tile, lanes, num_keys, tile_max);
  } else if (key_begin < query_tile.full_begin || key_end > query_tile.full_end) {
    apply_band(query_tile, lanes, scratch.tile, key_begin, num_keys);
    find_max(scratch.tile, lanes, num_keys, tile_max);
  } else if (num_keys % kScoreKeys != 0) {
    find_max(scratch.tile, lanes, num_keys, tile_max);  // the products' own includes rows of zeros
  }
  if (!raise_max(state, tile_max, o, scratch.o_stride) && !has_nan(scratch.tile, lanes, num_keys)) return;
  exponentiate(state, scratch.tile, num_keys);
  if (p.features.has(core::Feature::dropout)) dropout_chain(query_tile, lanes, scratch.tile, key_begin, num_keys);
  multiply_values(scratch.tile, lanes, query_tile.num_rows, num_keys, scratch.v, scratch.chunk_keys,
                  static_cast<int>(chunk_key), o, scratch.o_stride);
}

// Tiles of chunk [chunk_begin, chunk_end) that some row of the query tile sees.
template <typename Real>
void attend_chunk(QueryTileState<Real>& state, const Real* q, Real* o, const VectorScratch<Real>& scratch,
                  int64_t chunk_begin, int64_t chunk_end) {
  const QueryTile& query_tile = state.query_tile;
  const int64_t stop = chunk_end < query_tile.keys_end ? chunk_end : query_tile.keys_end;
  for (int64_t begin = chunk_begin; begin < stop; begin += kTileKeys) {
    const int64_t end = stop < begin + kTileKeys ? stop : begin + kTileKeys;
    if (query_tile.hides(begin, end)) continue;
    int64_t first = begin;
    if (begin >= query_tile.keep_end && query_tile.keys_begin > begin) {
      first = query_tile.keys_begin / kScoreKeys * kScoreKeys;  // hidden keys before it would add exact zeros
      if (first >= end) continue;
    }
    attend_tile(state, q, o, scratch, first, end, first - chunk_begin);
  }
}

// Converts keys [begin, end) of a chunk that begins at chunk_begin, as far as some query tile sees them.
template <typename T, typename Real>
void load_chunk(const core::AttentionArguments& p, const core::Sequence& s, const TileMap& map, int64_t kv_head,
                int64_t begin, int64_t end, int num_query_tiles, const VectorScratch<Real>& scratch) {
  const auto load = [&](int64_t from, int64_t to) HWY_ATTR {
    load_keys<T>(p, s, kv_head, from, to, from - begin, scratch);
    load_values<T>(p, s, map, kv_head, from, to, from - begin, scratch);
  };
  if (!map.exists()) return load(begin, end);
  for (int64_t from = begin; from < end; from += kTileKeys) {
    const int64_t to = end < from + kTileKeys ? end : from + kTileKeys;
    int n = 0;
    while (n < num_query_tiles && scratch.query_tiles[n].query_tile.hides(from, to)) ++n;
    if (n < num_query_tiles) load(from, to);
  }
}

// False: the call was cancelled meanwhile, and nothing was stored.
template <typename T, typename Real>
bool run_rows(const core::AttentionArguments& p, const core::Sequence& s, const TileMap& map, const WorkTile& work_tile,
              int64_t num_rows, const VectorScratch<Real>& scratch) {
  const int num_query_tiles = static_cast<int>((num_rows + kQueryTileRows - 1) / kQueryTileRows);
  const int64_t o_query_tile = kQueryTileRows * scratch.o_stride;
  for (int n = 0; n < num_query_tiles; ++n) {
    const int64_t rest = num_rows - n * kQueryTileRows;
    begin_query_tile<T>(p, s, map, work_tile, work_tile.row_begin + n * kQueryTileRows,
                        rest < kQueryTileRows ? static_cast<int>(rest) : kQueryTileRows, scratch,
                        scratch.query_tiles[n], scratch.q + n * scratch.q_stride, scratch.o + n * o_query_tile);
  }
  const int64_t keys_begin = scratch.query_tiles[0].query_tile.keys_begin / kTileKeys * kTileKeys;
  const int64_t keys_end = scratch.query_tiles[num_query_tiles - 1].query_tile.keys_end;
  const int64_t keep_end = scratch.query_tiles[num_query_tiles - 1].query_tile.keep_end;
  for (int64_t begin = keep_end > 0 ? 0 : keys_begin; begin < keys_end;) {
    if (begin >= keep_end && begin < keys_begin) begin = keys_begin;
    const int64_t end = keys_end < begin + scratch.chunk_keys ? keys_end : begin + scratch.chunk_keys;
    load_chunk<T>(p, s, map, work_tile.kv_head, begin, end, num_query_tiles, scratch);
    for (int n = 0; n < num_query_tiles; ++n) {
      if (core::is_cancelled(p.cancel)) return false;
      attend_chunk(scratch.query_tiles[n], scratch.q + n * scratch.q_stride, scratch.o + n * o_query_tile, scratch,
                   begin, end);
    }
    begin = end;
  }
  for (int n = 0; n < num_query_tiles; ++n)
    end_query_tile(scratch.query_tiles[n], scratch.o + n * o_query_tile, scratch.o_stride);
  return true;
}

template <typename Real>
void run_work_tile(const core::AttentionArguments& p, const TileMap& map, const WorkTile& work_tile,
                   const VectorScratch<Real>& scratch) {
  const int64_t row_end = work_tile.row_begin + work_tile.num_rows;
  if (work_tile.batch_idx < 0) return fill_hidden_rows(p, work_tile, work_tile.row_begin, row_end);
  const core::Sequence s = core::sequence(p, work_tile.batch_idx);
  const int64_t rows_in_use = s.len_q * p.group();
  const int64_t attend_end = row_end < rows_in_use ? row_end : rows_in_use;
  const int64_t num_rows = attend_end - work_tile.row_begin;
  bool is_done = true;
  if (num_rows > 0) {
    is_done = with_elements<Real>(
        p.dtype(), [&]<typename T>(const T*) HWY_ATTR { return run_rows<T>(p, s, map, work_tile, num_rows, scratch); });
  }
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  // Compilers insert it themselves, but not after a call that took vectors. If upper halves stay in use, later code
  // without AVX is many times slower.
  _mm256_zeroupper();
#endif
  if (!is_done) throw core::Cancelled();
  fill_hidden_rows(p, work_tile, num_rows > 0 ? attend_end : work_tile.row_begin, row_end);
}

template <typename Real>
inline constexpr VectorKernel<Real> kVectorKernel = {&run_work_tile<Real>, &classify_tiles, &score_chain<Real>,
                                                     &dropout_chain<Real>, &merge_rows<Real>};

}  // namespace HWY_NAMESPACE
}  // namespace tessella::cpu
HWY_AFTER_NAMESPACE();
