// The scores [row][key] of a run between the two products: scales, masks and softmax.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/vector/decode_vector.hpp"
#include "cpu/vector/exp2-inl.hpp"
#include "cpu/vector/score-inl.hpp"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tessella::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename Real>
void scale_scores(Real* scores, int num_rows, int begin, int end, const Real* scales) {
  const Tag<Real> d;
  for (int row = 0; row < num_rows; ++row, scores += kRunKeys) {
    for (int key = begin; key < end; key += kLanes<Real>) {
      hn::Store(hn::Mul(hn::Load(d, scores + key), hn::Load(d, scales + key)), d, scores + key);
    }
  }
}

// Probabilities of 0 stay 0, because a hidden key's scale may be NaN.
template <typename Real>
void scale_probs(Real* probs, int num_rows, int begin, int end, const Real* scales) {
  const Tag<Real> d;
  for (int row = 0; row < num_rows; ++row, probs += kRunKeys) {
    for (int key = begin; key < end; key += kLanes<Real>) {
      const Vec<Real> prob = hn::Load(d, probs + key);
      const Vec<Real> scaled = hn::Mul(prob, hn::Load(d, scales + key));
      hn::Store(hn::IfThenZeroElse(hn::Eq(prob, hn::Zero(d)), scaled), d, probs + key);
    }
  }
}

// Scores of [begin, end) that are outside of keys [first, stop) are hidden.
template <typename Real>
void hide_outside(Real* scores, int num_rows, int first, int stop, int begin, int end) {
  for (int row = 0; row < num_rows; ++row, scores += kRunKeys) {
    std::fill(scores + begin, scores + first, kMinusInfinity<Real>);
    std::fill(scores + stop, scores + end, kMinusInfinity<Real>);
  }
}

// Like hide_outside(); also hides keys outside each row's band. key_begin: the key of score 0.
template <typename Real>
void hide_by_band(const QueryTile& query_tile, Real* scores, int64_t key_begin, int first, int stop, int begin,
                  int end) {
  const auto hide = [&](Real* row, int64_t from, int64_t to) {
    from = std::max<int64_t>(from - key_begin, begin);
    to = std::min<int64_t>(to - key_begin, end);
    if (from < to) std::fill(row + from, row + to, kMinusInfinity<Real>);
  };
  for (int r = 0; r < query_tile.num_rows; ++r, scores += kRunKeys) {
    const int64_t keep = std::min<int64_t>(query_tile.arguments->keep_first, query_tile.end[r]);
    hide(scores, key_begin, key_begin + first);
    hide(scores, std::max<int64_t>(keep, key_begin + first), query_tile.begin[r]);
    hide(scores, std::min<int64_t>(query_tile.end[r], key_begin + stop), key_begin + kRunKeys);
  }
}

// Hides keys whose bit in their row's words is 0.
template <typename Real>
void hide_by_words(Real* scores, int num_rows, const uint64_t* words) {
  const Tag<Real> d;
  const hn::RebindToUnsigned<Tag<Real>> du;
  constexpr int kBits = 8 * sizeof(Real);
  using Word = hwy::MakeUnsigned<Real>;
  const Vec<Real> hidden = hn::Set(d, kMinusInfinity<Real>);
  alignas(64) Word bit_of_lane[kLanes<Real>];
  for (int lane = 0; lane < kLanes<Real>; ++lane) bit_of_lane[lane] = Word{1} << lane;
  const auto bits = hn::Load(du, bit_of_lane);
  for (int row = 0; row < num_rows; ++row, scores += kRunKeys, words += kRunWords) {
    for (int key = 0; key < kRunKeys; key += kBits) {
      const auto word = static_cast<Word>(words[key / 64] >> (key % 64));
      if (word == static_cast<Word>(~Word{0})) continue;
      for (int i = 0; i < kBits; i += kLanes<Real>) {
        const auto of_vector = hn::Set(du, static_cast<Word>(word >> i));
        const Mask<Real> is_seen = hn::RebindMask(d, hn::TestBit(of_vector, bits));
        hn::Store(hn::IfThenElse(is_seen, hn::Load(d, scores + key + i), hidden), d, scores + key + i);
      }
    }
  }
}

// The query tile's keys [first, stop) through `chain`, which takes [key][row].
template <typename Real, typename Chain>
void through_tiles(const QueryTileState<Real>& state, Real* scores, int64_t key_begin, int first, int stop, Real* tile,
                   Chain chain) {
  const int lanes = state.lanes;
  const int num_rows = state.query_tile.num_rows;
  for (int begin = first; begin < stop;) {
    const int end = std::min(stop, (begin / kTileKeys + 1) * kTileKeys);
    for (int key = begin; key < end; ++key) {
      Real* to = tile + (key - begin) * lanes;
      for (int row = 0; row < num_rows; ++row) to[row] = scores[row * kRunKeys + key];
      std::fill(to + num_rows, to + lanes, Real{0});
    }
    chain(state.query_tile, lanes, tile, key_begin + begin, end - begin);
    for (int key = begin; key < end; ++key) {
      for (int row = 0; row < num_rows; ++row) scores[row * kRunKeys + key] = tile[(key - begin) * lanes + row];
    }
    begin = end;
  }
}

// The softmax of a query tile.
template <typename Real>
struct SoftmaxRows {
  Real* origin;
  Real* offset;
  Real* sum;
  Real* o;
  int64_t o_stride;
};

template <typename Real>
HWY_INLINE Real power_of_two(Real exponent) {
  return hn::GetLane(exp2(hn::Set(Tag<Real>(), exponent)));
}

template <typename Real>
void scale_row(Real* o, int64_t count, Real factor) {
  const Tag<Real> d;
  const Vec<Real> by = hn::Set(d, factor);
  for (int64_t i = 0; i < count; i += kLanes<Real>) hn::Store(hn::Mul(hn::Load(d, o + i), by), d, o + i);
}

// Raises a row's maximum where the largest score exceeds it by more than 8, and rescales its sums: forward-inl.hpp.
template <typename Real>
HWY_INLINE void raise_row(const QueryTileState<Real>& state, const SoftmaxRows<Real>& rows, int row, Real found) {
  const Real scale = state.scale_log2;
  Real& origin = rows.origin[row];
  Real& offset = rows.offset[row];
  const bool begins = offset == kMinusInfinity<Real> && found > kMinusInfinity<Real>;  // whose exponent may be -inf
  if (!begins && !((found - origin) * scale > offset + 8)) return;
  const Real whole = std::ceil(found * scale);
  const bool is_offset = std::abs(whole) < state.offset_limit;
  const Real new_origin = is_offset ? 0 : found;
  const Real new_offset = is_offset ? whole : 0;
  const Real exponent = (origin - new_origin) * scale + (offset - new_offset);
  const Real factor = offset == kMinusInfinity<Real> ? 0 : power_of_two(exponent);
  origin = new_origin;
  offset = new_offset;
  rows.sum[row] *= factor;
  scale_row(rows.o + row * rows.o_stride, rows.o_stride, factor);
}

// The largest score. False if it is -inf and there is no NaN, which a maximum may lose.
template <typename Real>
HWY_INLINE bool find_largest(const Real* scores, int begin, int end, Real& found) {
  const Tag<Real> d;
  Vec<Real> largest = hn::Set(d, kMinusInfinity<Real>);
  for (int key = begin; key < end; key += kLanes<Real>) largest = hn::Max(hn::Load(d, scores + key), largest);
  found = hn::GetLane(hn::MaxOfLanes(d, largest));
  if (found != kMinusInfinity<Real>) return true;
  for (int key = begin; key < end; key += kLanes<Real>) {
    if (!hn::AllFalse(d, hn::IsNaN(hn::Load(d, scores + key)))) return true;
  }
  return false;
}

// scores = 2^(scale_log2 (scores - origin) - offset) of a row. Returns their sum.
template <typename Real>
HWY_INLINE Real exponentiate_row(Real* scores, int begin, int end, Real scale_log2, Real origin, Real offset) {
  const Tag<Real> d;
  const Vec<Real> scale = hn::Set(d, scale_log2);
  const Vec<Real> base = hn::Set(d, offset == kMinusInfinity<Real> ? 0 : offset);
  if (origin != 0) {
    const Vec<Real> from = hn::Set(d, origin);
    for (int key = begin; key < end; key += kLanes<Real>) {
      hn::Store(hn::Sub(hn::Load(d, scores + key), from), d, scores + key);
    }
  }
  Vec<Real> even = hn::Zero(d), odd = hn::Zero(d);
  const auto power = [&](int key) HWY_ATTR {
    const Vec<Real> prob = exp2(hn::MulSub(hn::Load(d, scores + key), scale, base));
    hn::Store(prob, d, scores + key);
    return prob;
  };
  int key = begin;
  for (; key + 2 * kLanes<Real> <= end; key += 2 * kLanes<Real>) {
    even = hn::Add(even, power(key));
    odd = hn::Add(odd, power(key + kLanes<Real>));
  }
  if (key < end) even = hn::Add(even, power(key));
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
}

// Scores of a run become probabilities. False if no row sees any of the keys.
template <typename Real>
bool soften(const QueryTileState<Real>& state, const SoftmaxRows<Real>& rows, Real* scores, int begin, int end) {
  bool any_visible = false;
  for (int row = 0; row < state.query_tile.num_rows; ++row) {
    Real found;
    any_visible |= find_largest(scores + row * kRunKeys, begin, end, found);
    raise_row(state, rows, row, found);
  }
  if (!any_visible) return false;
  for (int row = 0; row < state.query_tile.num_rows; ++row) {
    rows.sum[row] +=
        exponentiate_row(scores + row * kRunKeys, begin, end, state.scale_log2, rows.origin[row], rows.offset[row]);
  }
  return true;
}

}  // namespace HWY_NAMESPACE
}  // namespace tessella::cpu
HWY_AFTER_NAMESPACE();
