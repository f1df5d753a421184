// merge: states of attention over disjoint sets of keys become one (FlashInfer, arXiv 2501.01005, section 2.2).
//   LSE = log sum_i exp(lse_i),  out = sum_i exp(lse_i - LSE) out_i
// A few threads handle one row. Each merges some pieces of it over all states and computes the weights of all states
// itself, which costs little beside the loads. For Ampere and later. It uses no shared memory.
#pragma once

#include "cuda/device/ptx/math.cuh"
#include "cuda/device/score/softmax.cuh"
#include "cuda/device/tile/piece.cuh"
#include "cuda/kernels/merge/params.cuh"

namespace tessella::device {

using portable::Element;
using portable::MergeConfig;
using portable::MergeParams;
using portable::MergeState;

// One row of one head.
struct MergeRow {
  int64_t batch_idx, row_idx, head_idx;

  __device__ MergeRow(const MergeParams& p, int64_t idx) {
    const int64_t rows = idx / p.heads;
    head_idx = idx - rows * p.heads;
    batch_idx = rows / p.seqlen;
    row_idx = rows - batch_idx * p.seqlen;
  }
  __device__ int64_t out(const MergeState& s) const {
    return batch_idx * s.batch_stride + row_idx * s.row_stride + head_idx * s.head_stride;
  }
  __device__ float* lse(const MergeState& s) const {
    return s.lse + batch_idx * s.lse_batch_stride + row_idx * s.lse_row_stride + head_idx * s.lse_head_stride;
  }
};

// Writes out and returns the LSE.
template <MergeConfig C>
__device__ float merge_row(const MergeParams& p, const MergeRow& row, int32_t lane) {
  constexpr int N = portable::piece(C);
  float max = -kInfinity;
  if constexpr (C.continues) max = *row.lse(p.before);
  for (int32_t i = 0; i < p.num_states; ++i) max = fmaxf(max, *row.lse(p.states[i]));
  if (max == -kInfinity) max = 0;  // -inf - -inf would be NaN
  const auto power = [max](float lse) { return ptx::exp2((lse - max) * kLog2e); };
  float sum = 0;
  if constexpr (C.continues) sum = power(*row.lse(p.before));
  for (int32_t i = 0; i < p.num_states; ++i) sum += power(*row.lse(p.states[i]));

  for (int32_t column = lane * N; column < p.head_dim; column += N << p.log2_lanes) {
    float merged[N] = {};
    bool is_first = true;  // 0 + -0 is 0, and a state alone is copied as it is
    const auto add = [&]<Element E>(const MergeState& state) {
      const float lse = *row.lse(state);
      if (lse == -kInfinity) return;  // its out may hold anything
      float values[N];
      load_piece<E>(state.out, row.out(state) + column, values);
      const float weight = power(lse) / sum;
#pragma unroll
      for (int i = 0; i < N; ++i) merged[i] = is_first ? weight * values[i] : __fmaf_rn(weight, values[i], merged[i]);
      is_first = false;
    };
    if constexpr (C.continues) add.template operator()<Element::f32>(p.before);
    for (int32_t i = 0; i < p.num_states; ++i) add.template operator()<C.element>(p.states[i]);
    store_piece<C.out>(p.result.out, row.out(p.result) + column, merged);
  }
  if (sum == 0) return -kInfinity;
  return sum == 1 ? max : max + ptx::log2(sum) * kLn2;
}

// Grid: as many blocks as fit on the GPU; each loops over rows.
template <MergeConfig C>
__global__ void __launch_bounds__(portable::kMergeThreads, portable::kMergeBlocksPerSm)
    merge(const __grid_constant__ MergeParams p) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t lane = thread & ((1 << p.log2_lanes) - 1);
  const int64_t rows_at_once = portable::kMergeThreads >> p.log2_lanes;
  for (int64_t first = blockIdx.x * rows_at_once; first < p.rows; first += gridDim.x * rows_at_once) {
    const int64_t idx = first + (thread >> p.log2_lanes);
    const bool is_row = idx < p.rows;
    const MergeRow row(p, is_row ? idx : 0);
    const float lse = is_row ? merge_row<C>(p, row, lane) : 0.0f;
    __syncwarp();  // all lanes have read the lses, of which one may be the result's
    if (is_row && lane == 0 && p.result.lse != nullptr) *row.lse(p.result) = lse;
  }
}

}  // namespace tessella::device
