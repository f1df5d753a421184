// The softmax of softmax.hpp for a warp that has few others beside it: as many independent chains of instructions as
// the row of scores gives, for nothing else hides their latency.
#pragma once

#include "cuda/device/softmax.hpp"

namespace tessella::device {

// A row state, and whether take_max() need not look at it closely.
struct WatchedRows : RowState {
  bool is_usual = false;  // both maxima, times scale_log2, are at least -kLag and not large
};

// The largest score of row r (0 or 1) over the lane's columns. Numbers that are not negative keep their order as
// integers, of which Hopper compares three at a time; a lane whose columns are all negative, by their sign, says -inf.
template <int Blocks>
__device__ __forceinline__ float lane_max(const float (&s)[Blocks][4], int r) {
  int max = __vimax3_s32(__float_as_int(s[0][r * 2]), __float_as_int(s[0][r * 2 + 1]), __float_as_int(s[1][r * 2]));
  int other = __float_as_int(s[1][r * 2 + 1]);
#pragma unroll
  for (int j = 2; j < Blocks; ++j) {
    int& of = j % 2 == 0 ? max : other;
    of = __vimax3_s32(of, __float_as_int(s[j][r * 2]), __float_as_int(s[j][r * 2 + 1]));
  }
  return __int_as_float(__vimax3_s32(max, other, __float_as_int(-kInfinity)));
}

// The lane's least score, or some other where none is negative: negative numbers grow as unsigned integers.
template <int Blocks>
__device__ __forceinline__ float lane_least(const float (&s)[Blocks][4]) {
  uint32_t least[2] = {};
#pragma unroll
  for (int j = 0; j < Blocks; ++j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      least[r] = __vimax3_u32(least[r], __float_as_uint(s[j][r * 2]), __float_as_uint(s[j][r * 2 + 1]));
    }
  }
  return __uint_as_float(max(least[0], least[1]));
}

// What take_max() does for rows that are not usual, or whose maximum fell behind. max: of_max() of the rows' largest.
template <int Blocks, class OfMax, class Rescale>
__device__ __forceinline__ void raise_max(float (&s)[1][Blocks][4], float (&max)[1][2], WatchedRows& rows,
                                          float scale_log2, float (&offset)[2], const OfMax& of_max,
                                          const Rescale& rescale) {
  const auto is_known = [](float of_row) { return of_row >= 0 && of_row < kInfinity; };  // false for NaN
  if (!__all_sync(kAllLanes, is_known(max[0][0]) && is_known(max[0][1]))) {
    find_max(s, max);
#pragma unroll
    for (int r = 0; r < 2; ++r) max[0][r] = of_max(max[0][r]);
  }
  RowState state[1] = {rows};
  bool is_large = has_large_max(state, scale_log2);
  update_max(max, state, scale_log2, is_large, [&](int, const float(&by)[2]) {
    const float factor[1][2] = {{by[0], by[1]}};
    rescale(factor);
  });
  static_cast<RowState&>(rows) = state[0];
  if (is_large) subtract_max(s, state);
#pragma unroll
  for (int r = 0; r < 2; ++r) offset[r] = softmax_offset(rows.max[r], scale_log2, is_large);
  rows.is_usual = !is_large && fminf(rows.max[0], rows.max[1]) * scale_log2 >= -kLag;
}

// Takes a tile's scores into the maxima, which may lag behind as those of update_max(), and finds the offset that
// exponentiate_16() wants. Where what was summed before must be multiplied, rescale(factor) is called; the sums here
// are multiplied. Begins: nothing was. largest: by lane_max(). of_max(largest): the row's maximum, where scores are
// something that grows with what `s` holds; -inf of -inf.
template <bool Begins, int Blocks, class OfMax, class Rescale>
__device__ __forceinline__ void take_max(float (&s)[1][Blocks][4], const float (&largest)[2], WatchedRows& rows,
                                         float scale_log2, float (&offset)[2], const OfMax& of_max,
                                         const Rescale& rescale) {
  bool fits = Begins || rows.is_usual;
  float max[1][2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    max[0][r] = of_max(row_max(largest[r]));
    if constexpr (Begins) {
      offset[r] = max[0][r] * scale_log2;
      fits = fits && max[0][r] >= 0 && offset[r] <= kLargeMax;
    } else {
      offset[r] = rows.max[r] * scale_log2;
      // -inf stands for a negative maximum: that fits, as the usual maximum is not below -kLag.
      fits = fits && __fmaf_rn(max[0][r], scale_log2, -offset[r]) <= kLag;
    }
  }
  if (!__all_sync(kAllLanes, fits)) {
    raise_max(s, max, rows, scale_log2, offset, of_max, rescale);
  } else if constexpr (Begins) {
    static_cast<RowState&>(rows) = {{max[0][0], max[0][1]}, {0, 0}};
    rows.is_usual = true;
  }
}

// Turns the scores of blocks j and j + 1, 16 keys, into unnormalised probabilities and adds them to sum, two chains a
// row. exponent(score, r): of 2, for row r.
template <int Blocks, class Exponent>
__device__ __forceinline__ void exponentiate_16(float (&s)[Blocks][4], int j, const Exponent& exponent,
                                                float (&sum)[2][2]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float& score = s[j + i / 4][i % 4];
    score = ptx::exp2(exponent(score, i % 4 / 2));
    sum[i % 4 / 2][i % 2] += score;
  }
}

}  // namespace tessella::device
