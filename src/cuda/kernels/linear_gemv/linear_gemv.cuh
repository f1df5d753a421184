// linear_gemv: sums x w^T by fp32 fused multiply-adds, for one row of x or a few. For Ampere and later.
//
// A warp has some rows of w, and some rows of x against them; a lane has every 32nd piece of 16 bytes of a row of w, of
// which it loads some ahead. A lane adds products in the order of its columns, and the lanes' sums are added by pairs:
// a sum is made in the same order for any number of rows.
#pragma once

#include "cuda/device/linear/epilogue.cuh"
#include "cuda/device/linear/row_chunk.cuh"
#include "cuda/device/ptx/dependent.cuh"
#include "cuda/kernels/linear_gemv/params.cuh"

namespace tessella::device {

using portable::LinearGemvConfig;
using portable::LinearGemvParams;
using portable::LinearOut;

// The rows of w and x that a warp has, and how far a lane is in them.
template <LinearGemvConfig C>
class GemvRows {
 public:
  static constexpr int kRows = C.rows, kWRows = portable::w_rows(C), kAhead = portable::pieces_ahead(C);
  static constexpr int kSums = kRows * kWRows;             // first of all rows of x with the first row of w
  static constexpr int kPiece = chunk_elements(C.weight);  // columns that a lane loads at once
  static constexpr int kColumnsOfWarp = 32 * kPiece;
  using Weights = uint32_t[kWRows][4];  // a piece of each row

  __device__ __forceinline__ GemvRows(const LinearGemvParams& p, int32_t first_column, int32_t first_row, int32_t lane)
      : rows_(p.out.rows - first_row), there_(p.in.in_features - lane * kPiece) {
#pragma unroll
    for (int i = 0; i < kWRows; ++i) {
      // Rows behind the last are the last once more: their sums are not stored.
      const bool is_up = p.in.is_swiglu && i >= kWRows / 2;
      const int32_t row = min(first_column + (is_up ? i - kWRows / 2 : i), p.out.out_features - 1);
      const int64_t of_w = int64_t{row} + (is_up ? p.out.out_features : 0);
      w_[i] = static_cast<const char*>(p.in.w) + (of_w * p.in.w_stride + lane * kPiece) * kWeightBytes;
    }
    x_ = static_cast<const char*>(p.in.x) + (first_row * p.in.x_stride + lane * kPiece) * kElementBytes;
    x_row_bytes_ = p.in.x_stride * kElementBytes;
  }

  // Pieces [0, kAhead) from here on.
  __device__ __forceinline__ void load(Weights (&weights)[kAhead]) const {
#pragma unroll
    for (int piece = 0; piece < kAhead; ++piece) {
      constexpr int32_t kStep = kColumnsOfWarp;
#pragma unroll
      for (int i = 0; i < kWRows; ++i) {
        load_row_chunk<C.weight, C.vectors, true>(weights[piece][i], w_[i] + piece * kStep * kWeightBytes,
                                                  there_ - piece * kStep);
      }
    }
  }
  // Adds the products of one of them.
  __device__ __forceinline__ void multiply(float (&sums)[kSums], const Weights& weights, int piece) const {
    constexpr int kChunk = chunk_elements(C.element);
#pragma unroll
    for (int first = 0; first < kPiece; first += kChunk) {
      const int32_t ahead = piece * kColumnsOfWarp + first;
      float of_w[kWRows][kChunk];
#pragma unroll
      for (int i = 0; i < kWRows; ++i) words_to_floats<C.weight>(weights[i] + first * 4 / kPiece, of_w[i]);
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        if (row >= rows_) break;
        uint32_t chunk[4];
        float of_x[kChunk];
        load_row_chunk<C.element, C.vectors, false>(chunk, x_ + row * x_row_bytes_ + ahead * kElementBytes,
                                                    there_ - ahead);
        words_to_floats<C.element>(chunk, of_x);
#pragma unroll
        for (int i = 0; i < kWRows; ++i) {
          float& sum = sums[i * kRows + row];
#pragma unroll
          for (int k = 0; k < kChunk; ++k) sum = __fmaf_rn(of_w[i][k], of_x[k], sum);
        }
      }
    }
  }
  // By kAhead pieces.
  __device__ __forceinline__ void advance() {
    constexpr int32_t kStep = kAhead * kColumnsOfWarp;
    there_ -= kStep;
    x_ += kStep * kElementBytes;
#pragma unroll
    for (int i = 0; i < kWRows; ++i) w_[i] += kStep * kWeightBytes;
  }

 private:
  static constexpr int kElementBytes = portable::size_bytes(C.element);
  static constexpr int kWeightBytes = portable::size_bytes(C.weight);

  int32_t rows_, there_;  // rows of x, and columns from here on
  const char* w_[kWRows];
  const char* x_;
  int64_t x_row_bytes_;
};

// Adds the sums of lanes `kLanes` apart, then half as far apart and so on. Of sums that remain a lane gives half to the
// other one and keeps the other half, so that few are exchanged. From kLanes = 16 on, lanes 32 / N * i and the next few
// return the sum of number i.
template <int kLanes = 16, int N>
__device__ __forceinline__ float sum_of_lanes(const float (&sums)[N], int32_t lane) {
  if constexpr (kLanes == 0) {
    return sums[0];
  } else if constexpr (N == 1) {
    const float both[1] = {sums[0] + __shfl_xor_sync(kAllLanes, sums[0], kLanes)};
    return sum_of_lanes<kLanes / 2>(both, lane);
  } else {
    const bool keeps_second = (lane & kLanes) != 0;
    float both[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      const float given = keeps_second ? sums[i] : sums[i + N / 2];
      const float kept = keeps_second ? sums[i + N / 2] : sums[i];
      both[i] = kept + __shfl_xor_sync(kAllLanes, given, kLanes);
    }
    return sum_of_lanes<kLanes / 2>(both, lane);
  }
}

// Grid: blocks of rows of w; neighbours have the same rows of w where there are more rows of x than a warp has.
template <LinearGemvConfig C>
__global__ void __launch_bounds__(portable::kLinearGemvWarps * 32, portable::blocks_per_sm(C))
    linear_gemv(const __grid_constant__ LinearGemvParams p) {
  using Rows = GemvRows<C>;
  const auto thread = static_cast<int32_t>(threadIdx.x), lane = thread % 32;
  const auto block_idx = static_cast<int32_t>(blockIdx.x);
  const int32_t out_columns = p.in.is_swiglu ? Rows::kWRows / 2 : Rows::kWRows;
  const int32_t first_column = (block_idx / p.row_groups * portable::kLinearGemvWarps + thread / 32) * out_columns;
  const int32_t first_row = block_idx % p.row_groups * C.rows;
  Rows rows(p, first_column, first_row, lane);

  typename Rows::Weights weights[Rows::kAhead];
  const auto follow_kernel_before = [] {
    ptx::wait_for_kernel_before();
    ptx::let_kernel_behind_start();
  };
  if (!p.in.weights_ready) follow_kernel_before();
  rows.load(weights);
  if (p.in.weights_ready) follow_kernel_before();

  float sums[Rows::kSums] = {};
#pragma unroll 1
  for (int32_t left = p.in.in_features; left > 0; left -= Rows::kAhead * Rows::kColumnsOfWarp) {
#pragma unroll
    for (int piece = 0; piece < Rows::kAhead; ++piece) {
      if (piece * Rows::kColumnsOfWarp < left) rows.multiply(sums, weights[piece], piece);
    }
    rows.advance();
    rows.load(weights);
  }
  const float sum = sum_of_lanes(sums, lane);
  const float up = __shfl_xor_sync(kAllLanes, sum, 16);  // with SwiGLU of the same row of x
  constexpr int32_t kLanesOfSum = 32 / Rows::kSums;
  const int32_t idx = lane / kLanesOfSum, i = idx / Rows::kRows;
  const int32_t row = first_row + idx % Rows::kRows, out_column = first_column + i;
  const bool is_out = i < out_columns && row < p.out.rows && out_column < p.out.out_features;
  if (lane % kLanesOfSum == 0 && is_out) store_result<C.element>(p.out, p.in.is_swiglu != 0, row, out_column, sum, up);
}

}  // namespace tessella::device
