// The softmax of softmax.cuh for a multiprocessor with few warps. Nothing else hides latency there, so the code has few
// instructions, and its exponentials and comparisons do not wait for each other.
//
// Maxima are found in a query tile's first key tile. A row then keeps its offset while each lane's sum over a tile,
// which is computed anyway, stays within 2^kLag. Each probability is then within 2^kLag too, so the maximum lags by at
// most kLag. If a sum exceeds it, the tile is computed again with new maxima, and the following tiles find maxima too,
// until these stop growing. In batch_invariant calls every tile finds maxima. (FlashDecoding++, arXiv 2311.01282,
// section 3, has one maximum for all rows and computes again if it fails. Here each row has its own.)
#pragma once

#include "cuda/device/score/softmax.cuh"

namespace tessella::device {

inline constexpr float kLargestSum = 256;  // 2^kLag
inline constexpr float kSmallLag = 2;      // with which the sums of a lane's 32 columns are not too large yet

struct WatchedRows : RowState {
  float offset[2] = {0, 0};  // subtracted from exponents, in base 2
  // Every row of the warp has a maximum, none is large and none has just grown. Exponents may then use these maxima
  // before the tile's own are known.
  bool may_reuse_max = false;
};

// The largest score of row r (0 or 1) over the lane's columns. Non-negative floats keep their order as integers, and
// Hopper compares three integers at once. A lane whose columns all have a minus sign returns -inf.
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

// Raises the maxima to those of a tile. If a maximum rises, rescale(factor) is called to multiply the output so far;
// the sums here are multiplied.
template <int Blocks, class Rescale>
__device__ __forceinline__ void raise_max(float (&s)[1][Blocks][4], WatchedRows& rows, float scale_log2,
                                          const Rescale& rescale) {
  float max[1][2];
  find_max(s, max);
  bool grows = false;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    grows |= rows.max[r] > -kInfinity && (max[0][r] - rows.max[r]) * scale_log2 > kSmallLag;
  }
  RowState state[1] = {rows};
  bool is_large = has_large_max(state, scale_log2);
  update_max<false>(max, state, scale_log2, kSmallLag, is_large, [&](int, const float(&by)[2]) {
    const float factor[1][2] = {{by[0], by[1]}};
    rescale(factor);
  });
  static_cast<RowState&>(rows) = state[0];
  if (is_large) subtract_max(s, state);
#pragma unroll
  for (int r = 0; r < 2; ++r) rows.offset[r] = softmax_offset(rows.max[r], scale_log2, is_large);
  const bool may_reuse_max = !grows && !is_large && fminf(rows.max[0], rows.max[1]) > -kInfinity;
  rows.may_reuse_max = __all_sync(kAllLanes, may_reuse_max);
}

// The same for batch_invariant calls, in every tile. A row's result depends on that row alone: votes decide what a warp
// computes, never a value.
template <int Blocks, class Rescale>
__device__ __forceinline__ void raise_max_of_each(float (&s)[1][Blocks][4], WatchedRows& rows, float scale_log2,
                                                  const Rescale& rescale) {
  // lane_max() returns -inf for a lane of negative scores. That is correct if the row's maximum is not negative.
  float max[1][2] = {{lane_max(s[0], 0), lane_max(s[0], 1)}};
  if (!__all_sync(kAllLanes, fmaxf(max[0][0], rows.max[0]) >= 0 && fmaxf(max[0][1], rows.max[1]) >= 0)) {
    find_max(s, max);
  }
  RowState state[1] = {rows};
  bool ignored = false;  // a vote of the whole warp, so it is not used
  update_max<true>(max, state, scale_log2, 0, ignored, [&](int, const float(&by)[2]) {
    const float factor[1][2] = {{by[0], by[1]}};
    rescale(factor);
  });
  static_cast<RowState&>(rows) = state[0];
  float taken_off[2];  // a large maximum, else 0
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float offset = softmax_offset(rows.max[r], scale_log2, false);
    const bool is_large = fabsf(offset) > kLargeMax;
    taken_off[r] = is_large ? rows.max[r] : 0.0f;
    rows.offset[r] = is_large ? 0.0f : offset;
  }
  if (!__any_sync(kAllLanes, taken_off[0] != 0 || taken_off[1] != 0)) return;
#pragma unroll
  for (int j = 0; j < Blocks; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[0][j][i] -= taken_off[i / 2];
  }
}

// A shorter version if no row of the warp has a maximum yet and the new ones are neither negative nor large. Otherwise
// it returns false and changes nothing.
template <int Blocks>
__device__ __forceinline__ bool begin_max(const float (&s)[1][Blocks][4], WatchedRows& rows, float scale_log2) {
  if (!__all_sync(kAllLanes, rows.max[0] == -kInfinity && rows.max[1] == -kInfinity)) return false;
  float max[2];
  bool is_moderate = true;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    max[r] = row_max(lane_max(s[0], r));
    is_moderate = is_moderate && max[r] >= 0 && max[r] * scale_log2 <= kLargeMax;  // false for NaN
  }
  if (!__all_sync(kAllLanes, is_moderate)) return false;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    rows.max[r] = max[r];
    rows.offset[r] = max[r] * scale_log2;
  }
  rows.may_reuse_max = true;
  return true;
}

// Finds the maxima of a tile's scores and sets the exponents' offsets. rescale(factor) multiplies earlier sums and the
// output.
template <bool BatchInvariant, int Blocks, class Rescale>
__device__ __forceinline__ void take_maxima(float (&s)[1][Blocks][4], WatchedRows& rows, float scale_log2,
                                            const Rescale& rescale) {
  if constexpr (BatchInvariant) {
    raise_max_of_each(s, rows, scale_log2, rescale);
  } else if (!begin_max(s, rows, scale_log2)) {
    raise_max(s, rows, scale_log2, rescale);
  }
}

// Computes unnormalised probabilities of blocks j and j + 1, 16 keys, and adds them to sum; j = 0 starts the sum.
// exponent(score, r, column): exponent of 2 for row r and a column counted from the lane's first.
template <int Blocks, class Exponent>
__device__ __forceinline__ void exponentiate_16(const float (&s)[Blocks][4], int j, const Exponent& exponent,
                                                float (&probability)[2][4], float (&sum)[2]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float& of = probability[i / 4][i % 4];
    of = ptx::exp2(exponent(s[j + i / 4][i % 4], i % 4 / 2, (j + i / 4) * 8 + i % 2));
    const int r = i % 4 / 2;
    const bool begins = j == 0 && i / 4 == 0 && i % 2 == 0;
    sum[r] = begins ? of : sum[r] + of;
  }
}

}  // namespace tessella::device
