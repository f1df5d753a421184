// The softmax of softmax.hpp for a warp that has few others beside it: as many independent chains of instructions as
// the row of scores gives, for nothing else hides their latency.
#pragma once

#include "cuda/device/multiply.hpp"
#include "cuda/device/softmax.hpp"


namespace tessella::device {

__device__ __forceinline__ int max_of_three(int a, int b, int c) { return __vimax3_s32(a, b, c); }

// The largest score of row r (0 or 1) over the lane's columns. Numbers that are not negative keep their order as
// integers, of which Hopper compares three at a time; a lane whose columns are all negative, by their sign, says -inf.
template <int Blocks>
__device__ __forceinline__ float lane_max(const float (&s)[Blocks][4], int r) {
  int max = max_of_three(__float_as_int(s[0][r * 2]), __float_as_int(s[0][r * 2 + 1]), __float_as_int(s[1][r * 2]));
  int other = __float_as_int(s[1][r * 2 + 1]);
#pragma unroll
  for (int j = 2; j < Blocks; ++j) {
    int& of = j % 2 == 0 ? max : other;
    of = max_of_three(of, __float_as_int(s[j][r * 2]), __float_as_int(s[j][r * 2 + 1]));
  }
  return __int_as_float(max_of_three(max, other, __float_as_int(-kInfinity)));
}

// Takes a tile's scores into the maxima; kLag, is_large and what follows from them are update_max()'s. Returns true, in
// all lanes alike, where what was summed before must be multiplied by `factor`; the sums here are.
template <int Blocks>
__device__ __forceinline__ bool raise_max(const float (&s)[Blocks][4], RowState& rows, float scale_log2, bool& is_large,
                                          float (&factor)[2]) {
  float max[2] = {row_max(lane_max(s, 0)), row_max(lane_max(s, 1))};
  if (__any_sync(kAllLanes, fminf(max[0], max[1]) < 0)) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float of_lane = s[0][r * 2];
#pragma unroll
      for (int j = 0; j < Blocks; ++j) of_lane = fmaxf(of_lane, fmaxf(s[j][r * 2], s[j][r * 2 + 1]));
      max[r] = row_max(of_lane);
    }
  }
  const bool is_behind =
      (max[0] - rows.max[0]) * scale_log2 > kLag || (max[1] - rows.max[1]) * scale_log2 > kLag;
  if (!__any_sync(kAllLanes, is_behind)) return false;
  bool mine = false;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float raised = fmaxf(rows.max[r], max[r]);
    factor[r] = raised == rows.max[r] ? 1.0f : ptx::exp2((rows.max[r] - raised) * scale_log2);
    rows.max[r] = raised;
    rows.sum[r] *= factor[r];
    mine |= raised > -kInfinity && fabsf(raised) * scale_log2 > 0x1p20f;
  }
  is_large = __any_sync(kAllLanes, mine);
  return true;
}

// Turns scores into unnormalised probabilities, summed in fp32 and packed for the next product: registers of the left
// operand for every 16 columns. Exponentials take longest; the rest is done beside them.
template <Element E, int Blocks>
__device__ __forceinline__ void exponentiate_rows(const float (&s)[Blocks][4], RowState& rows, float scale_log2,
                                                  bool is_large, uint32_t (&probabilities)[Blocks / 2][4]) {
  float offset[2], sum[2][2] = {};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    offset[r] = is_large || rows.max[r] == -kInfinity ? 0.0f : rows.max[r] * scale_log2;
  }
#pragma unroll
  for (int j = 0; j < Blocks; ++j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float first = ptx::exp2(__fmaf_rn(s[j][r * 2], scale_log2, -offset[r]));
      const float second = ptx::exp2(__fmaf_rn(s[j][r * 2 + 1], scale_log2, -offset[r]));
      sum[r][0] += first;
      sum[r][1] += second;
      probabilities[j / 2][j % 2 * 2 + r] = Multiply<E>::pack(first, second);
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) rows.sum[r] += sum[r][0] + sum[r][1];
}

}  // namespace tessella::device
