// The softmax of softmax.hpp for a warp that has few others beside it: as many independent chains of instructions as
// the row of scores gives, for nothing else hides their latency.
#pragma once

#include "cuda/device/softmax.hpp"

namespace tessella::device {

// The largest score of row r (0 or 1) over the lane's columns, in two chains.
template <int Blocks>
__device__ __forceinline__ float lane_max(const float (&s)[Blocks][4], int r) {
  float even = fmaxf(s[0][r * 2], s[0][r * 2 + 1]), odd = fmaxf(s[1][r * 2], s[1][r * 2 + 1]);
#pragma unroll
  for (int j = 2; j < Blocks; j += 2) {
    even = fmaxf(even, fmaxf(s[j][r * 2], s[j][r * 2 + 1]));
    if (j + 1 < Blocks) odd = fmaxf(odd, fmaxf(s[j + 1][r * 2], s[j + 1][r * 2 + 1]));
  }
  return fmaxf(even, odd);
}

// Takes a tile's scores into the maxima; kLag, is_large and what follows from them are update_max()'s. Returns true, in
// all lanes alike, where what was summed before must be multiplied by `factor`; the sums here are.
template <int Blocks>
__device__ __forceinline__ bool raise_max(const float (&s)[Blocks][4], RowState& rows, float scale_log2, bool& is_large,
                                          float (&factor)[2]) {
  const float of_lane[2] = {lane_max(s, 0), lane_max(s, 1)};
  const float max[2] = {row_max(of_lane[0]), row_max(of_lane[1])};
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

// Turns scores into unnormalised probabilities and sums them, two chains a row.
template <int Blocks>
__device__ __forceinline__ void exponentiate_rows(float (&s)[Blocks][4], RowState& rows, float scale_log2,
                                                  bool is_large) {
  float offset[2], sum[2][2] = {};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    offset[r] = is_large || rows.max[r] == -kInfinity ? 0.0f : rows.max[r] * scale_log2;
  }
#pragma unroll
  for (int j = 0; j < Blocks; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      s[j][i] = ptx::exp2(__fmaf_rn(s[j][i], scale_log2, -offset[i / 2]));
      sum[i / 2][i % 2] += s[j][i];
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) rows.sum[r] += sum[r][0] + sum[r][1];
}

}  // namespace tessella::device
