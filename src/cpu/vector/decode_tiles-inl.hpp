// The two products of few rows, whose lanes are columns: keys and values are read once, from where they lie, and
// converted in registers.
//
//   score_tile  S[row][key]  = sum over columns of Q[row] K[key]: one accumulator for each row and key, whose lanes are
//               summed together with those of others
//   value_tile  O[row]      += sum over keys of P[row][key] V[key]
//
// What becomes of a row does not depend on the tile that it is in: each tile sums columns and keys in the same order.
#pragma once

#include <cstring>

#include "cpu/decode_units.hpp"
#include "cpu/vector/exp2-inl.hpp"
#include "cpu/vector/pairs-inl.hpp"
#include "cpu/vector/sums-inl.hpp"
#include "cpu/vector/tiles-inl.hpp"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tessella::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr int kScores = kManyRegisters ? 16 : 8;  // of a score tile; whole vectors of every type
inline constexpr int kScoreRows = 4;                     // of the highest score tile
inline constexpr int kValueKeys = 64;                    // keys that are summed before they are added to o

// Blocks of a value tile.
template <int kRows>
inline constexpr int kValueBlocks = kManyRegisters ? (kRows == 4 ? 2 : 4) : 4 / kRows;

// Rows lie anywhere, and the first of a stretch is not foreseen by hardware.
HWY_INLINE void prefetch_columns(const void* row, int64_t begin, int64_t bytes) {
  const char* lines = static_cast<const char*>(row) + begin;
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(lines + i, 0, 2);
}

// Scores of kScores / kRows keys. The rows that follow `keys` by `ahead` are fetched, if that is not 0.
template <int kRows, typename T, typename Real>
HWY_INLINE void score_tile(const void* const* keys, int ahead, int64_t row_bytes, const Real* HWY_RESTRICT q,
                           int64_t q_stride, int dim, Real* HWY_RESTRICT scores) {
  constexpr int kKeys = kScores / kRows;
  const Tag<Real> d;
  if (ahead != 0) {
    for (int key = 0; key < kKeys; ++key) prefetch_columns(keys[key + ahead], 0, row_bytes);
  }
  Vec<Real> sum[kScores];
  HWY_UNROLL(16)
  for (int i = 0; i < kScores; ++i) sum[i] = hn::Zero(d);
  const auto add = [&](int block, auto&& load) HWY_ATTR {
    Vec<Real> first[kRows], second[kRows];
    HWY_UNROLL(4)
    for (int row = 0; row < kRows; ++row) {
      first[row] = hn::Load(d, q + row * q_stride + block * kBlock<Real>);
      second[row] = hn::Load(d, q + row * q_stride + block * kBlock<Real> + kLanes<Real>);
    }
    HWY_UNROLL(16)
    for (int key = 0; key < kKeys; ++key) {
      const Pair<Real> pair = load(static_cast<const T*>(keys[key]));
      HWY_UNROLL(4)
      for (int row = 0; row < kRows; ++row) {
        Vec<Real>& to = sum[row * kKeys + key];
        to = hn::MulAdd(second[row], pair.second, hn::MulAdd(first[row], pair.first, to));
      }
    }
  };
  const int full = dim / kBlock<Real>;
  HWY_UNROLL(1)
  for (int block = 0; block < full; ++block) {
    add(block, [&](const T* key) HWY_ATTR { return load_pair<Real>(key, block * kBlock<Real>); });
  }
  if (dim % kBlock<Real> != 0) add(full, [&](const T* key) HWY_ATTR { return load_rest<Real>(key, dim); });

  HWY_ALIGN Real sums[kScores];
  HWY_UNROLL(8)
  for (int i = 0; i < kScores; i += kLanes<Real>) hn::Store(sum_each<Real>(sum + i), d, sums + i);
  HWY_UNROLL(4)
  for (int row = 0; row < kRows; ++row) std::memcpy(scores + row * kRunKeys, sums + row * kKeys, kKeys * sizeof(Real));
}

template <int kRows, typename T, typename Real>
HWY_NOINLINE void score_rows(const void* const* keys, int begin, int end, int ahead, int64_t row_bytes, const Real* q,
                             int64_t q_stride, int dim, Real* scores) {
  for (int key = begin; key < end; key += kScores / kRows) {
    score_tile<kRows, T>(keys + key, ahead, row_bytes, q, q_stride, dim, scores + key);
  }
}

// scores[row][key] of keys [begin, end), both multiples of kScores.
template <typename T, typename Real>
void multiply_keys(const void* const* keys, int begin, int end, int ahead, int64_t row_bytes, const Real* q,
                   int64_t q_stride, int num_rows, int dim, Real* scores) {
  for (int row = 0; row < num_rows; ahead = 0) {
    const Real* of = q + row * q_stride;
    Real* to = scores + row * kRunKeys;
    const int rest = num_rows - row;
    const int rows = rest >= kScoreRows ? kScoreRows : rest >= 2 ? 2 : 1;
    if (rows == kScoreRows) {
      score_rows<kScoreRows, T>(keys, begin, end, ahead, row_bytes, of, q_stride, dim, to);
    } else if (rows == 2) {
      score_rows<2, T>(keys, begin, end, ahead, row_bytes, of, q_stride, dim, to);
    } else {
      score_rows<1, T>(keys, begin, end, ahead, row_bytes, of, q_stride, dim, to);
    }
    row += rows;
  }
}

// False, and nothing is added, if a sum is NaN and `checks`.
template <int kRows, int kCount, typename T, typename Real>
HWY_INLINE bool value_tile(const void* const* values, int num_keys, int ahead, const Blocks<Real, T>& blocks, int block,
                           const Real* HWY_RESTRICT probs, Real* HWY_RESTRICT o, int64_t o_stride, bool checks) {
  const Tag<Real> d;
  constexpr int kVectors = 2 * kCount;
  constexpr int64_t kBytes = kCount * kBlock<Real> * static_cast<int64_t>(sizeof(T)) / kOfElement<T>;
  Vec<Real> sum[kRows][kVectors];
  HWY_UNROLL(4)
  for (int row = 0; row < kRows; ++row) {
    HWY_UNROLL(8)
    for (int i = 0; i < kVectors; ++i) sum[row][i] = hn::Zero(d);
  }
  int column[kCount];
  for (int i = 0; i < kCount; ++i) column[i] = blocks.begin(block + i);
  const auto add = [&](auto&& load) HWY_ATTR {
    HWY_UNROLL(1)
    for (int key = 0; key < num_keys; ++key) {
      const T* row_of_key = static_cast<const T*>(values[key]);
      if (ahead != 0)
        prefetch_columns(values[key + ahead], column[0] * static_cast<int64_t>(sizeof(T)) / kOfElement<T>, kBytes);
      Vec<Real> prob[kRows];
      HWY_UNROLL(4)
      for (int row = 0; row < kRows; ++row) prob[row] = hn::Set(d, probs[row * kRunKeys + key]);
      HWY_UNROLL(4)
      for (int i = 0; i < kCount; ++i) {
        const Pair<Real> pair = load(row_of_key, i);
        HWY_UNROLL(4)
        for (int row = 0; row < kRows; ++row) {
          sum[row][2 * i] = hn::MulAdd(prob[row], pair.first, sum[row][2 * i]);
          sum[row][2 * i + 1] = hn::MulAdd(prob[row], pair.second, sum[row][2 * i + 1]);
        }
      }
    }
  };
  if (blocks.is_short()) {
    add([&](const T* row, int) HWY_ATTR { return load_short<Real>(row, blocks.dim); });
  } else {
    add([&](const T* row, int i) HWY_ATTR { return load_pair<Real>(row, column[i]); });
  }
  if (checks) {
    Vec<Real> all = hn::Zero(d);
    HWY_UNROLL(4)
    for (int row = 0; row < kRows; ++row) {
      HWY_UNROLL(8)
      for (int i = 0; i < kVectors; ++i) all = hn::Add(all, sum[row][i]);
    }
    if (!hn::AllFalse(d, hn::IsNaN(all))) return false;
  }
  HWY_UNROLL(4)
  for (int row = 0; row < kRows; ++row) {
    Real* to = o + row * o_stride + block * kBlock<Real>;
    HWY_UNROLL(8)
    for (int i = 0; i < kVectors; ++i, to += kLanes<Real>) hn::Store(hn::Add(hn::Load(d, to), sum[row][i]), d, to);
  }
  return true;
}

// Keys of V for a stretch of at most kValueKeys keys.
template <typename T, typename Real>
struct ValueKeys {
  const void* const* values;
  int num_keys;
  int ahead;
  Blocks<Real, T> blocks;
};

// kCount blocks at a time, then fewer. `repair` is called once at most, where a sum is NaN: it may replace values.
template <int kRows, int kCount, typename T, typename Real, typename Repair>
HWY_INLINE void multiply_blocks(const ValueKeys<T, Real>& of, int block, const Real* probs, Real* o, int64_t o_stride,
                                bool& checks, Repair&& repair) {
  for (; block + kCount <= of.blocks.count(); block += kCount) {
    const auto multiply = [&] {
      return value_tile<kRows, kCount>(of.values, of.num_keys, of.ahead, of.blocks, block, probs, o, o_stride, checks);
    };
    if (multiply()) continue;
    repair();
    checks = false;
    multiply();
  }
  if constexpr (kCount > 1) multiply_blocks<kRows, kCount / 2>(of, block, probs, o, o_stride, checks, repair);
}

// o[row] += sum of probs[row][key] values[key].
template <typename T, typename Real, typename Repair>
void multiply_values_of(ValueKeys<T, Real> of, const Real* probs, int num_rows, Real* o, int64_t o_stride,
                        Repair&& repair) {
  bool checks = true;
  for (int row = 0; row < num_rows; of.ahead = 0) {
    const Real* from = probs + row * kRunKeys;
    Real* to = o + row * o_stride;
    const int rest = num_rows - row;
    const int rows = rest >= 4 ? 4 : rest >= 2 ? 2 : 1;
    if (rows == 4) {
      multiply_blocks<4, kValueBlocks<4>>(of, 0, from, to, o_stride, checks, repair);
    } else if (rows == 2) {
      multiply_blocks<2, kValueBlocks<2>>(of, 0, from, to, o_stride, checks, repair);
    } else {
      multiply_blocks<1, kValueBlocks<1>>(of, 0, from, to, o_stride, checks, repair);
    }
    row += rows;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessella::cpu
HWY_AFTER_NAMESPACE();
