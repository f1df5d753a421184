// A chunk of K and V rows converted to scratch for the register tiles.
//
// K keeps its rows, V is cut into panels of columns as wide as a value tile. Columns up to the padded head dim are
// zero. V rows that no query may see are zero if they hold infinities or NaN.
#pragma once

#include <cstring>
#include <limits>

#include "cpu/vector/convert-inl.hpp"
#include "cpu/vector/exp2-inl.hpp"
#include "cpu/vector/forward_vector.hpp"
#include "cpu/vector/tiles-inl.hpp"
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "operations/attention/arguments.hpp"

HWY_BEFORE_NAMESPACE();
namespace tessella::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Rows of K and V lie far apart and each is short, so the hardware's prefetchers come late.
template <typename T>
HWY_INLINE void prefetch_row(const core::Operand& operand, const T* row, int dim) {
  constexpr int64_t kRowsAhead = 6;
  constexpr int kLine = 64 / sizeof(T);
  const T* ahead = row + kRowsAhead * operand.row_stride;
  for (int i = 0; i < dim; i += kLine) hwy::Prefetch(ahead + i);
}

// K rows [key_begin, key_end) to the row-th of scratch, followed by zero rows up to a multiple of kScoreKeys.
template <typename T, typename Real>
void load_keys(const core::AttentionArguments& p, const core::Sequence& s, int64_t kv_head, int64_t key_begin,
               int64_t key_end, int64_t row, const VectorScratch<Real>& scratch) {
  const int dim = static_cast<int>(p.head_dim_qk);
  const Tag<Real> d;
  Real* to = scratch.k + row * scratch.k_stride;
  for (int64_t key = key_begin; key < key_end; ++key, to += scratch.k_stride) {
    const T* from = reinterpret_cast<const T*>(p.row_of(p.k(), s.batch_idx, s.row_kv + key, kv_head));
    prefetch_row(p.k(), from, dim);
    int i = 0;
    for (; i + kLanes<Real> <= dim; i += kLanes<Real>) hn::Store(load_floats(d, from + i), d, to + i);
    if (i < dim) hn::Store(load_first<Real>(from + i, dim - i), d, to + i);
  }
  const int64_t zero_rows = (key_begin - key_end) & (kScoreKeys - 1);
  std::memset(to, 0, sizeof(Real) * static_cast<size_t>(zero_rows * scratch.k_stride));
}

// One V row to panels: column c of the panel W wide that starts at column C goes to [C * chunk_keys + row * W + c - C].
// False if it holds infinities or NaN.
template <typename T, typename Real>
HWY_INLINE bool load_value_row(const T* from, int dim, int64_t row, const VectorScratch<Real>& scratch) {
  constexpr int kWidth = kValueVectors * kLanes<Real>;
  const Tag<Real> d;
  const IntTag<Real> di;
  const IntVec<Real> magnitude = hn::Set(di, std::numeric_limits<hn::TFromD<IntTag<Real>>>::max());
  const IntVec<Real> infinity = hn::BitCast(di, hn::Set(d, std::numeric_limits<Real>::infinity()));
  IntVec<Real> largest = hn::Zero(di);  // of the magnitudes as integers: infinities and NaN are larger than all numbers
  const int stride = static_cast<int>(scratch.o_stride);
  for (int panel = 0; panel < stride; panel += kWidth) {
    const int width = stride - panel < kWidth ? stride - panel : kWidth;
    Real* to = scratch.v + panel * scratch.chunk_keys + row * width;
    for (int i = panel; i < panel + width; i += kLanes<Real>) {
      Vec<Real> value = hn::Zero(d);
      if (i + kLanes<Real> <= dim) {
        value = load_floats(d, from + i);
      } else if (i < dim) {
        value = load_first<Real>(from + i, dim - i);
      }
      largest = hn::Max(largest, hn::And(hn::BitCast(di, value), magnitude));
      hn::Store(value, d, to + (i - panel));
    }
  }
  return hn::AllTrue(di, hn::Lt(largest, infinity));
}

// V rows [key_begin, key_end) to panels, the first to their row-th. 0 * NaN is NaN: values that no query may see must
// not meet even a zero probability.
template <typename T, typename Real>
void load_values(const core::AttentionArguments& p, const core::Sequence& s, const TileMap& map, int64_t kv_head,
                 int64_t key_begin, int64_t key_end, int64_t row, const VectorScratch<Real>& scratch) {
  static constexpr T kZeros[kMaxHeadDim] = {};
  const int dim = static_cast<int>(p.head_dim_v);
  for (int64_t key = key_begin; key < key_end; ++key, ++row) {
    const T* from = reinterpret_cast<const T*>(p.row_of(p.v(), s.batch_idx, s.row_kv + key, kv_head));
    prefetch_row(p.v(), from, dim);
    const bool is_finite = load_value_row(from, dim, row, scratch);
    if (HWY_UNLIKELY(!is_finite) && !map.is_seen(p, s, kv_head, key)) load_value_row(kZeros, dim, row, scratch);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessella::cpu
HWY_AFTER_NAMESPACE();
