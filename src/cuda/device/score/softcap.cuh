// A softcap alone, of a warp's products of q and k: cap tanh(s / cap).
//
// Most scores are far from the cap. Where all of a warp's are, an odd polynomial of three terms takes the place of
// tanh: four instructions a score in place of some twenty. It errs by 2^-21 at the most (cuda/launch/softcap.cpp).
#pragma once

#include "cuda/device/ptx/order.cuh"
#include "cuda/device/score/score.cuh"

namespace tessella::device {

// The largest absolute value of a lane's products. It ignores NaN, which both paths keep.
template <int Blocks>
__device__ __forceinline__ float largest(const float (&s)[Blocks][4]) {
  float most[2] = {0, 0};  // two chains of comparisons, which do not wait for each other
#pragma unroll
  for (int j = 0; j < Blocks; ++j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) most[r] = fmaxf(most[r], fmaxf(fabsf(s[j][r * 2]), fabsf(s[j][r * 2 + 1])));
  }
  return fmaxf(most[0], most[1]);
}

// Exact tanh. Blocks take turns in two positions of a loop: unrolled the code was a fifth of the kernel.
template <class Score, int Blocks>
__device__ __forceinline__ void cap_by_tanh(const Score& score, float (&s)[Blocks][4]) {
#pragma unroll 1
  for (int turn = 0; turn < Blocks; turn += 2) {
    float capped[2][4];
#pragma unroll
    for (int i = 0; i < 8; ++i) capped[i / 4][i % 4] = score.value(s[i / 4][i % 4], {}, 0, 0);
#pragma unroll
    for (int j = 0; j < Blocks; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[j][i] = j + 2 < Blocks ? s[j + 2][i] : capped[j + 2 - Blocks][i];
    }
  }
}

template <class Score, int MBlocks, int Blocks>
__device__ __forceinline__ void cap(const Score& score, float (&s)[MBlocks][Blocks][4]) {
  float most = 0;
#pragma unroll
  for (int m = 0; m < MBlocks; ++m) most = fmaxf(most, largest(s[m]));
  if (__all_sync(kAllLanes, most <= score.end_of_series())) {
#pragma unroll
    for (int m = 0; m < MBlocks; ++m) {
#pragma unroll
      for (int j = 0; j < Blocks; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) s[m][j][i] = score.by_series(s[m][j][i]);
      }
    }
  } else {
#pragma unroll
    for (int m = 0; m < MBlocks; ++m) cap_by_tanh(score, s[m]);
  }
}

}  // namespace tessella::device
