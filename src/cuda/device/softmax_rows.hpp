// The softmax of softmax.hpp for a warp that has few others beside it: as many independent chains of instructions as
// the row of scores gives, for nothing else hides their latency.
#pragma once

#include "cuda/device/softmax.hpp"

namespace tessella::device {

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

// Takes a tile's scores into the maxima, which may lag behind as those of update_max(). Returns true, in all lanes
// alike, where what was summed before must be multiplied by `factor`; the sums here are.
template <int Blocks>
__device__ __forceinline__ bool raise_max(const float (&s)[Blocks][4], RowState& rows, float scale_log2,
                                          float (&factor)[2]) {
  float max[2] = {row_max(lane_max(s, 0)), row_max(lane_max(s, 1))};
  if (__any_sync(kAllLanes, fminf(max[0], max[1]) < 0)) {  // a row of negative scores alone: as floats, then
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float of_lane = s[0][r * 2];
#pragma unroll
      for (int j = 0; j < Blocks; ++j) of_lane = fmaxf(of_lane, fmaxf(s[j][r * 2], s[j][r * 2 + 1]));
      max[r] = row_max(of_lane);
    }
  }
  const bool is_behind = (max[0] - rows.max[0]) * scale_log2 > kLag || (max[1] - rows.max[1]) * scale_log2 > kLag;
  if (!__any_sync(kAllLanes, is_behind)) return false;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float raised = fmaxf(rows.max[r], max[r]);
    factor[r] = raised == rows.max[r] ? 1.0f : ptx::exp2((rows.max[r] - raised) * scale_log2);
    rows.max[r] = raised;
    rows.sum[r] *= factor[r];
  }
  return true;
}

// True, in all lanes alike, for a maximum so large that scale_log2 times it must not be rounded apart from its scores.
__device__ __forceinline__ bool has_large_max(const RowState& rows, float scale_log2) {
  bool mine = false;
#pragma unroll
  for (int r = 0; r < 2; ++r) mine |= rows.max[r] > -kInfinity && fabsf(rows.max[r]) * scale_log2 > 0x1p20f;
  return __any_sync(kAllLanes, mine);
}

// Turns the scores of blocks j and j + 1, 16 keys, into unnormalised probabilities and adds them to sum, two chains a
// row. offset: what softmax_offset() says.
template <int Blocks>
__device__ __forceinline__ void exponentiate_16(float (&s)[Blocks][4], int j, float scale_log2,
                                                const float (&offset)[2], float (&sum)[2][2]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float& score = s[j + i / 4][i % 4];
    score = ptx::exp2(__fmaf_rn(score, scale_log2, -offset[i % 4 / 2]));
    sum[i % 4 / 2][i % 2] += score;
  }
}

// What exponents are taken against, in base 2.
__device__ __forceinline__ float softmax_offset(float max, float scale_log2, bool is_large) {
  return is_large || max == -kInfinity ? 0.0f : max * scale_log2;
}

}  // namespace tessella::device
