// Rows of merge in vectors: weights of all states first, then columns, each state's row read once.
//
// Nothing crosses rows, so a row's bits do not depend on threads or on the rows beside it.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/query_tile.hpp"
#include "cpu/vector/convert-inl.hpp"
#include "cpu/vector/exp2-inl.hpp"
#include "cpu/vector/merge_vector.hpp"
#include "hwy/highway.h"
#include "operations/merge/arguments.hpp"

HWY_BEFORE_NAMESPACE();
namespace tessella::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Gathers the states of a row that have keys: where their rows lie, and exp(lse - LSE). Returns the LSE. Sets count.
template <typename Real>
Real gather_states(const core::MergeArguments& a, int64_t b, int64_t s, int64_t h, const MergeScratch<Real>& scratch,
                   int& count) {
  const Tag<Real> d;
  constexpr Real kNoKeys = -std::numeric_limits<Real>::infinity();
  Real max = kNoKeys;
  count = 0;
  for (const core::MergeArguments::State& state : a.given) {
    const auto lse = static_cast<Real>(load_lse(state.lse, b, s, h));
    if (lse == kNoKeys) continue;
    max = std::max(max, lse);
    scratch.rows[count] = state.out.row(b, s, h);
    scratch.weights[count++] = lse;
  }
  if (count == 0) return kNoKeys;
  if (max == kNoKeys) max = 0;  // NaN alone
  for (int i = count; i % kLanes<Real> != 0; ++i) scratch.weights[i] = kNoKeys;
  const Vec<Real> log2_e = hn::Set(d, kLog2E<Real>);
  Vec<Real> sums = hn::Zero(d);
  for (int i = 0; i < count; i += kLanes<Real>) {
    const Vec<Real> weight = exp2(hn::Mul(hn::Sub(hn::Load(d, scratch.weights + i), hn::Set(d, max)), log2_e));
    sums = hn::Add(sums, weight);
    hn::Store(weight, d, scratch.weights + i);
  }
  const Real sum = hn::GetLane(hn::SumOfLanes(d, sums));
  for (int i = 0; i < count; i += kLanes<Real>) {
    hn::Store(hn::Div(hn::Load(d, scratch.weights + i), hn::Set(d, sum)), d, scratch.weights + i);
  }
  return static_cast<Real>(static_cast<double>(max) + std::log(static_cast<double>(sum)));
}

// Columns [column, column + kVectors * kLanes<Real>) of a row. A state alone is copied: its weight is 1.
template <int kVectors, typename In, typename Out, typename Real>
HWY_INLINE void merge_columns(const MergeScratch<Real>& scratch, int count, int64_t column, Out* out) {
  const Tag<Real> d;
  Vec<Real> sum[kVectors];
  for (int i = 0; i < count; ++i) {
    const Vec<Real> weight = hn::Set(d, scratch.weights[i]);
    const In* row = reinterpret_cast<const In*>(scratch.rows[i]) + column;
    for (int v = 0; v < kVectors; ++v) {
      const Vec<Real> value = load_floats(d, row + v * kLanes<Real>);
      sum[v] = i == 0 ? hn::Mul(weight, value) : hn::MulAdd(weight, value, sum[v]);
    }
  }
  for (int v = 0; v < kVectors; ++v) store_floats(sum[v], out + column + v * kLanes<Real>);
}

template <typename In, typename Out, typename Real>
void merge_row(const MergeScratch<Real>& scratch, int count, int64_t columns, Out* out) {
  const Tag<Real> d;
  if (count == 0) {
    std::fill(out, out + columns, Out{});
    return;
  }
  int64_t column = 0;
  for (; column + 4 * kLanes<Real> <= columns; column += 4 * kLanes<Real>)
    merge_columns<4, In>(scratch, count, column, out);
  for (; column + kLanes<Real> <= columns; column += kLanes<Real>) merge_columns<1, In>(scratch, count, column, out);
  if (column == columns) return;
  const auto rest = static_cast<int>(columns - column);
  Vec<Real> sum = hn::Zero(d);
  for (int i = 0; i < count; ++i) {
    const Vec<Real> weight = hn::Set(d, scratch.weights[i]);
    const Vec<Real> value = load_first<Real>(reinterpret_cast<const In*>(scratch.rows[i]) + column, rest);
    sum = i == 0 ? hn::Mul(weight, value) : hn::MulAdd(weight, value, sum);
  }
  Out last[kLanes<Real>];
  store_floats(sum, last);
  std::copy(last, last + rest, out + column);
}

template <typename In, typename Out, typename Real>
void merge_rows_as(const core::MergeArguments& a, int64_t begin, int64_t end, const MergeScratch<Real>& scratch) {
  for (int64_t idx = begin; idx < end; ++idx) {
    const int64_t h = idx % a.heads;
    const int64_t s = idx / a.heads % a.seqlen;
    const int64_t b = idx / a.heads / a.seqlen;
    int count;
    const Real lse = gather_states(a, b, s, h, scratch, count);
    merge_row<In>(scratch, count, a.head_dim, reinterpret_cast<Out*>(a.result.out.row(b, s, h)));
    if (a.result.lse.data != nullptr) store_lse(a.result.lse, b, s, h, lse);
  }
}

// Rows [begin, end), counted over batch, seqlen and heads.
template <typename Real>
void merge_rows(const core::MergeArguments& a, int64_t begin, int64_t end, const MergeScratch<Real>& scratch) {
  with_elements<Real>(a.dtype(), [&]<typename In>(const In*) HWY_ATTR {
    with_elements<Real>(a.out.dtype,
                        [&]<typename Out>(const Out*) HWY_ATTR { merge_rows_as<In, Out>(a, begin, end, scratch); });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace tessella::cpu
HWY_AFTER_NAMESPACE();
