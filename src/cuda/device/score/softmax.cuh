// The running softmax of a 16 x 8n block of accumulators: rows g and g + 8 of each lane (ptx/mma.cuh).
//
// Online softmax (Milakov and Gimelshein, arXiv 1805.02867) in base 2 with the output kept unscaled (FlashAttention-2,
// arXiv 2307.08691, algorithm 1). The maximum that exponents subtract may be up to kLag below the true one. Every
// finite choice gives the same quotient, 2^kLag is far from overflow in fp32 and in half precision, and most tiles then
// need no rescaling of the output. (In batch_invariant calls it does not lag.)
#pragma once

#include "cuda/device/ptx/math.cuh"
#include "cuda/device/tile/constants.cuh"

namespace tessella::device {

// The state of two rows. max is in the units of the scores that update_max() gets; -inf before the first visible key.
struct RowState {
  float max[2] = {-kInfinity, -kInfinity};
  float sum[2] = {0, 0};  // of this lane's columns alone until finish()
};

// The largest value over the four lanes of a row.
__device__ __forceinline__ float row_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, 1));
  return fmaxf(value, __shfl_xor_sync(kAllLanes, value, 2));
}
__device__ __forceinline__ float row_sum(float value) {
  value += __shfl_xor_sync(kAllLanes, value, 1);
  return value + __shfl_xor_sync(kAllLanes, value, 2);
}

inline constexpr float kLag = 8;  // in base 2: unnormalised probabilities stay below 2^8

// Maxima of the rows of MBlocks blocks of scores, over this lane's columns only.
template <int MBlocks, int Blocks>
__device__ __forceinline__ void find_max(const float (&s)[MBlocks][Blocks][4], float (&lanes)[MBlocks][2]) {
#pragma unroll
  for (int m = 0; m < MBlocks; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float max = fmaxf(s[m][0][r * 2], s[m][0][r * 2 + 1]);
#pragma unroll
      for (int j = 1; j < Blocks; ++j) max = fmaxf(max, fmaxf(s[m][j][r * 2], s[m][j][r * 2 + 1]));
      lanes[m][r] = max;
    }
  }
}

inline constexpr float kLargeMax = 0x1p20f;  // in base 2

// True, in all lanes alike, if some maximum is so large that scale_log2 times it must not be rounded separately from
// its scores.
template <int MBlocks>
__device__ __forceinline__ bool has_large_max(const RowState (&rows)[MBlocks], float scale_log2) {
  bool mine = false;
#pragma unroll
  for (int m = 0; m < MBlocks; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) mine |= rows[m].max[r] > -kInfinity && fabsf(rows[m].max[r]) * scale_log2 > kLargeMax;
  }
  return __any_sync(kAllLanes, mine);
}

// Merges the maxima of a tile's scores, as find_max() computes them, into those of the rows. If a maximum falls behind
// by more than lag, all of them rise, rescale(m, factor) is called for every block m that has a maximum, to multiply
// the two rows of the output, and is_large becomes has_large_max(). Until then lanes only vote. SubtractsMax: is_large
// is true. BatchInvariant: is_large is true and maxima do not lag; otherwise a neighbouring row would decide when a
// row's maximum rises and whether it counts as large.
template <bool BatchInvariant, bool SubtractsMax = BatchInvariant, int MBlocks, class Rescale>
__device__ __forceinline__ void update_max(const float (&lanes)[MBlocks][2], RowState (&rows)[MBlocks],
                                           float scale_log2, float lag, bool& is_large, const Rescale& rescale) {
  bool is_behind = false;
#pragma unroll
  for (int m = 0; m < MBlocks; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      is_behind |= BatchInvariant ? lanes[m][r] > rows[m].max[r]
                                  // True if the maximum was -inf and is not now, false if it is -inf still.
                                  : (lanes[m][r] - rows[m].max[r]) * scale_log2 > lag;
    }
  }
  if (!__any_sync(kAllLanes, is_behind)) return;
#pragma unroll
  for (int m = 0; m < MBlocks; ++m) {
    float factor[2];
    const bool has_begun = __any_sync(kAllLanes, fmaxf(rows[m].max[0], rows[m].max[1]) > -kInfinity);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float max = fmaxf(rows[m].max[r], row_max(lanes[m][r]));
      factor[r] = max == rows[m].max[r] ? 1.0f : ptx::exp2((rows[m].max[r] - max) * scale_log2);
      rows[m].max[r] = max;
      rows[m].sum[r] *= factor[r];
    }
    if (has_begun) rescale(m, factor);
  }
  is_large = BatchInvariant || SubtractsMax || has_large_max(rows, scale_log2);
}

// For large maxima: subtracts each row's maximum from its scores. exponentiate() then subtracts 0.
template <int MBlocks, int Blocks>
__device__ __forceinline__ void subtract_max(float (&s)[MBlocks][Blocks][4], const RowState (&rows)[MBlocks]) {
#pragma unroll
  for (int m = 0; m < MBlocks; ++m) {
#pragma unroll
    for (int j = 0; j < Blocks; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float max = rows[m].max[i / 2];
        if (max > -kInfinity) s[m][j][i] -= max;
      }
    }
  }
}

// The exponents' offset of a row, in base 2.
__device__ __forceinline__ float softmax_offset(float max, float scale_log2, bool is_large) {
  return is_large || max == -kInfinity ? 0.0f : max * scale_log2;
}

// Turns the scores of block columns [from, until) into unnormalised probabilities 2^(scale_log2 (s - max)), scale_log2
// > 0, and sums them. All exponentials come first: each takes long, and the next need not wait for it.
template <int MBlocks, int Blocks>
__device__ __forceinline__ void exponentiate(float (&s)[MBlocks][Blocks][4], RowState (&rows)[MBlocks],
                                             float scale_log2, bool is_large, int from, int until) {
#pragma unroll
  for (int m = 0; m < MBlocks; ++m) {
    float offset[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) offset[r] = softmax_offset(rows[m].max[r], scale_log2, is_large);
#pragma unroll
    for (int j = from; j < until; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& of = s[m][j][i];
        of = ptx::exp2(__fmaf_rn(of, scale_log2, -offset[i / 2]));
      }
    }
  }
#pragma unroll
  for (int m = 0; m < MBlocks; ++m) {
#pragma unroll
    for (int j = from; j < until; ++j) {
#pragma unroll
      for (int r = 0; r < 2; ++r) rows[m].sum[r] += s[m][j][r * 2] + s[m][j][r * 2 + 1];
    }
  }
}

// The end of a row: the factor on the output and the natural logarithm of the sum, a sink included. scale turns units
// of max into natural ones.
struct RowResult {
  float factor;
  float lse;
};
__device__ __forceinline__ RowResult finish(float max, float sum, float scale, bool has_sink, float sink) {
  const float natural_max = sum == 0 ? -kInfinity : max * scale;
  if (has_sink && sink > -kInfinity) {
    // The exponents subtract the larger of both, so that neither overflows.
    const float top = fmaxf(natural_max, sink);
    const float kept = sum == 0 ? 0.0f : ptx::exp2((natural_max - top) * kLog2e);
    const float total = sum * kept + ptx::exp2((sink - top) * kLog2e);
    return {kept * ptx::reciprocal(total), top + ptx::log2(total) * kLn2};
  }
  if (sum == 0) return {0.0f, -kInfinity};
  return {ptx::reciprocal(sum), natural_max + ptx::log2(sum) * kLn2};
}

}  // namespace tessella::device
