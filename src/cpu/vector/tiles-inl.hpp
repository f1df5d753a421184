// The two register-tiled products of attention.
//
//   score_tile  S^T[key][row] = sum_d K[key][d] * Q^T[d][row]     lanes are rows, K is broadcast
//   value_tile  O[row][c]    += sum_key P[row][key] * V[key][c]    lanes are columns, P is broadcast
//
// Tiles fill the register file: 24 accumulators of 32 registers or 12 of 16, so that the two fused multiply-adds a
// cycle do not wait for latency. On AVX-512 every load beside them costs, even where two a cycle would do: the nearer a
// tile is to a square of vectors and broadcasts, the better (docs/lab/cpu.md).
#pragma once

#include "cpu/vector/exp2-inl.hpp"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tessella::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr bool kManyRegisters = HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON;
inline constexpr int kScoreKeys = kManyRegisters ? 8 : 4;             // keys of a score tile
inline constexpr int kScoreVectors = 3;                               // vectors of rows of a score tile
inline constexpr int kValueVectors = HWY_TARGET == HWY_AVX3 ? 4 : 2;  // vectors of columns of a value tile
inline constexpr int kAccumulators = kManyRegisters ? 24 : 12;

// Rows of a value tile that is kVectors wide.
template <int kVectors>
inline constexpr int kValueRows = kVectors == 1 ? 12 : kAccumulators / kVectors;

// Also raises max[row] to the largest score; of scores with NaN among them max[row] may be any, or NaN.
template <int kVectors, typename Real>
HWY_INLINE void score_tile(const Real* HWY_RESTRICT k, int64_t k_stride, const Real* HWY_RESTRICT q, int lanes, int dim,
                           Real* HWY_RESTRICT scores, Real* HWY_RESTRICT max) {
  const Tag<Real> d;
  Vec<Real> sum[kScoreKeys][kVectors];
  HWY_UNROLL(8)
  for (int key = 0; key < kScoreKeys; ++key) {
    HWY_UNROLL(3)
    for (int v = 0; v < kVectors; ++v) sum[key][v] = hn::Zero(d);
  }
  HWY_UNROLL(1)
  for (int64_t i = 0; i < dim; ++i) {
    Vec<Real> row[kVectors];
    HWY_UNROLL(3)
    for (int v = 0; v < kVectors; ++v) row[v] = hn::Load(d, q + i * lanes + v * kLanes<Real>);
    HWY_UNROLL(8)
    for (int key = 0; key < kScoreKeys; ++key) {
      const Vec<Real> value = hn::Set(d, k[key * k_stride + i]);
      HWY_UNROLL(3)
      for (int v = 0; v < kVectors; ++v) sum[key][v] = hn::MulAdd(value, row[v], sum[key][v]);
    }
  }
  HWY_UNROLL(3)
  for (int v = 0; v < kVectors; ++v) {
    Vec<Real> largest = hn::Load(d, max + v * kLanes<Real>);
    HWY_UNROLL(8)
    for (int key = 0; key < kScoreKeys; ++key) {
      hn::Store(sum[key][v], d, scores + key * lanes + v * kLanes<Real>);
      largest = hn::Max(largest, sum[key][v]);
    }
    hn::Store(largest, d, max + v * kLanes<Real>);
  }
}

// scores[key][row] of num_keys keys (rounded up to kScoreKeys) and `lanes` rows; max as in score_tile.
template <typename Real>
void multiply_scores(const Real* k, int64_t k_stride, const Real* q, int lanes, int dim, int num_keys, Real* scores,
                     Real* max) {
  for (int key = 0; key < num_keys; key += kScoreKeys) {
    const Real* k_rows = k + key * k_stride;
    Real* tile = scores + key * lanes;
    int row = 0;
    for (; row + kScoreVectors * kLanes<Real> <= lanes; row += kScoreVectors * kLanes<Real>) {
      score_tile<kScoreVectors>(k_rows, k_stride, q + row, lanes, dim, tile + row, max + row);
    }
    if (row + 2 * kLanes<Real> <= lanes) {
      score_tile<2>(k_rows, k_stride, q + row, lanes, dim, tile + row, max + row);
      row += 2 * kLanes<Real>;
    }
    if (row < lanes) score_tile<1>(k_rows, k_stride, q + row, lanes, dim, tile + row, max + row);
  }
}

// The source that a value tile broadcasts: element [row][key] of a matrix with any strides.
template <typename Real>
struct Weights {
  const Real* data;
  int64_t row_stride;
  int64_t key_stride;
};

// The tile is summed from zero and then added to o: shorter chains of roundings at no cost.
template <int kRows, int kVectors, typename Real>
HWY_INLINE void value_tile(Weights<Real> weights, int num_keys, const Real* HWY_RESTRICT v, int64_t v_stride,
                           Real* HWY_RESTRICT o, int64_t o_stride) {
  const Tag<Real> d;
  Vec<Real> sum[kRows][kVectors];
  HWY_UNROLL(12)
  for (int row = 0; row < kRows; ++row) {
    HWY_UNROLL(4)
    for (int c = 0; c < kVectors; ++c) sum[row][c] = hn::Zero(d);
  }
  HWY_UNROLL(1)
  for (int64_t key = 0; key < num_keys; ++key) {
    Vec<Real> value[kVectors];
    HWY_UNROLL(4)
    for (int c = 0; c < kVectors; ++c) value[c] = hn::Load(d, v + key * v_stride + c * kLanes<Real>);
    HWY_UNROLL(12)
    for (int row = 0; row < kRows; ++row) {
      const Vec<Real> prob = hn::Set(d, weights.data[key * weights.key_stride + row * weights.row_stride]);
      HWY_UNROLL(4)
      for (int c = 0; c < kVectors; ++c) sum[row][c] = hn::MulAdd(prob, value[c], sum[row][c]);
    }
  }
  HWY_UNROLL(12)
  for (int row = 0; row < kRows; ++row) {
    HWY_UNROLL(4)
    for (int c = 0; c < kVectors; ++c) {
      Real* to = o + row * o_stride + c * kLanes<Real>;
      hn::Store(hn::Add(hn::Load(d, to), sum[row][c]), d, to);
    }
  }
}

// One panel of columns, kVectors vectors wide, for all rows of a query tile.
template <int kVectors, typename Real>
HWY_INLINE void multiply_panel(Weights<Real> weights, int num_rows, int num_keys, const Real* v, int64_t v_stride,
                               Real* o, int64_t o_stride) {
  constexpr int kRows = kValueRows<kVectors>;
  const auto from = [&](int row) {
    return Weights<Real>{weights.data + row * weights.row_stride, weights.row_stride, weights.key_stride};
  };
  int row = 0;
  for (; row + kRows <= num_rows; row += kRows) {
    value_tile<kRows, kVectors>(from(row), num_keys, v, v_stride, o + row * o_stride, o_stride);
  }
  for (; row + kRows / 3 <= num_rows; row += kRows / 3) {
    value_tile<kRows / 3, kVectors>(from(row), num_keys, v, v_stride, o + row * o_stride, o_stride);
  }
  for (; row < num_rows; ++row) {
    value_tile<1, kVectors>(from(row), num_keys, v, v_stride, o + row * o_stride, o_stride);
  }
}

// v: panels of kValueVectors vectors (the last may be narrower) of panel_keys keys each, see load_values.
template <typename Real>
void multiply_values(const Real* probs, int lanes, int num_rows, int num_keys, const Real* v, int64_t panel_keys,
                     int key_offset, Real* o, int64_t o_stride) {
  constexpr int kWidth = kValueVectors * kLanes<Real>;
  const Weights<Real> weights{probs, 1, lanes};
  int64_t column = 0;
  for (; column + kWidth <= o_stride; column += kWidth) {
    const Real* panel = v + column * panel_keys + key_offset * kWidth;
    multiply_panel<kValueVectors>(weights, num_rows, num_keys, panel, kWidth, o + column, o_stride);
  }
  const int64_t width = o_stride - column;
  const Real* panel = v + column * panel_keys + key_offset * width;
  switch (width / kLanes<Real>) {
    case 1: return multiply_panel<1>(weights, num_rows, num_keys, panel, kLanes<Real>, o + column, o_stride);
    case 2: return multiply_panel<2>(weights, num_rows, num_keys, panel, 2 * kLanes<Real>, o + column, o_stride);
    case 3: return multiply_panel<3>(weights, num_rows, num_keys, panel, 3 * kLanes<Real>, o + column, o_stride);
    default: return;
  }
}

// o[row][c] += sum_key weights[row][key] * v[key][c] for c in [0, stride), the row strides of v and o alike.
template <typename Real>
void multiply_rows(Weights<Real> weights, int num_rows, int num_keys, const Real* v, Real* o, int64_t stride) {
  constexpr int kWidth = kValueVectors * kLanes<Real>;
  int64_t column = 0;
  for (; column + kWidth <= stride; column += kWidth) {
    multiply_panel<kValueVectors>(weights, num_rows, num_keys, v + column, stride, o + column, stride);
  }
  switch ((stride - column) / kLanes<Real>) {
    case 1: return multiply_panel<1>(weights, num_rows, num_keys, v + column, stride, o + column, stride);
    case 2: return multiply_panel<2>(weights, num_rows, num_keys, v + column, stride, o + column, stride);
    case 3: return multiply_panel<3>(weights, num_rows, num_keys, v + column, stride, o + column, stride);
    default: return;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessella::cpu
HWY_AFTER_NAMESPACE();
