// linear_sm80: sums x w^T of few rows of x by the matrix instructions of a warp, w read once. For Ampere and later.
//
//   block   16 or 32 rows of w, 8 to 64 rows of x, all columns
//   warp    every eighth 128 bytes of these rows of w: w goes from memory into registers as left operands, some
//           pieces ahead; x comes as right operands by the same loads, from the caches
//   end     the sums of the warps are added in their order through shared memory
//
// w is the left operand, because that has 16 rows and a right one 8. An instruction takes of a lane two pairs of
// columns, eight apart, and a load gives it neighbours. The order of columns does not change a product, so both
// operands have them as loads give them. A sum is made in the same order for any number of rows.
#pragma once

#include "cuda/device/linear/epilogue.cuh"
#include "cuda/device/linear/row_chunk.cuh"
#include "cuda/device/ptx/dependent.cuh"
#include "cuda/device/tile/multiply.cuh"
#include "cuda/kernels/linear_sm80/params.cuh"

namespace tessella::device {

using portable::LinearOperands;
using portable::LinearOut;
using portable::LinearSm80Config;
using portable::LinearSm80Params;

// The left operand of one of a piece's instructions. above, below: 16 bytes of rows lane / 4 and lane / 4 + 8.
template <Element E, Element W>
__device__ __forceinline__ typename Multiply<E>::A left_operand(const uint32_t (&above)[4], const uint32_t (&below)[4],
                                                                int step) {
  if constexpr (W == E) {
    return {{above[2 * step], below[2 * step], above[2 * step + 1], below[2 * step + 1]}};
  } else {
    constexpr uint32_t kNeighbours = 0x3120;  // widen() pairs the first byte with the third
    uint32_t of_above[2], of_below[2];
    widen<E, W>(__byte_perm(above[step], 0, kNeighbours), of_above);
    widen<E, W>(__byte_perm(below[step], 0, kNeighbours), of_below);
    return {{of_above[0], of_below[0], of_above[1], of_below[1]}};
  }
}

// The rows of w and x of which a lane has columns, and how far it is in them.
template <LinearSm80Config C>
class LaneRows {
 public:
  static constexpr int kPiece = chunk_elements(C.weight);  // columns that a lane loads at once
  static constexpr int kPieces = 2;                        // of a lane, in the 128 bytes that a warp takes of a row
  static constexpr int kPieceOfWarp = 4 * kPiece;
  static constexpr int kColumnsOfWarp = kPieces * kPieceOfWarp;
  static constexpr int kColumnsOfBlock = portable::kLinearSm80Warps * kColumnsOfWarp;
  using Weights = uint32_t[C.w_blocks][2][4];  // a piece of each row

  __device__ __forceinline__ LaneRows(const LinearSm80Params& p, int32_t w_block, int32_t first_row, int warp, int lane)
      : x_rows_(p.out.rows - first_row - lane / 4) {
    const int32_t column = warp * kColumnsOfWarp + lane % 4 * kPiece;
    there_ = p.in.in_features - column;
#pragma unroll
    for (int block = 0; block < C.w_blocks; ++block) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        // Rows behind the last are the last once more: their sums are not stored.
        const int32_t in_half = p.in.is_swiglu ? w_block * 16 : (w_block * C.w_blocks + block) * 16;
        const int32_t row = min(in_half + lane / 4 + i * 8, p.out.out_features - 1);
        const int32_t half = p.in.is_swiglu ? block * p.out.out_features : 0;
        w_[block][i] =
            static_cast<const char*>(p.in.w) + ((int64_t{half} + row) * p.in.w_stride + column) * kWeightBytes;
      }
    }
    x_ = static_cast<const char*>(p.in.x) + ((first_row + lane / 4) * p.in.x_stride + column) * kElementBytes;
    eight_rows_ = 8 * p.in.x_stride * kElementBytes;
  }

  // A piece of w, of this turn or of the next.
  __device__ __forceinline__ void load(Weights& weights, int piece, int turn) const {
    const int32_t ahead = piece * kPieceOfWarp + turn * kColumnsOfBlock;
#pragma unroll
    for (int block = 0; block < C.w_blocks; ++block) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        load_row_chunk<C.weight, C.vectors, true>(weights[block][i], w_[block][i] + ahead * kWeightBytes,
                                                  there_ - ahead);
      }
    }
  }
  // Right operands of two instructions for 8 rows of x, columns from `ahead` on. Rows that do not exist are zeros.
  __device__ __forceinline__ void load_x(uint32_t (&words)[4], int row_block, int32_t ahead) const {
    load_row_chunk<C.element, C.vectors, false>(words, x_ + row_block * eight_rows_ + ahead * kElementBytes,
                                                8 * row_block < x_rows_ ? there_ - ahead : 0);
  }
  __device__ __forceinline__ void advance() {
    there_ -= kColumnsOfBlock;
    x_ += kColumnsOfBlock * kElementBytes;
#pragma unroll
    for (int block = 0; block < C.w_blocks; ++block) {
#pragma unroll
      for (int i = 0; i < 2; ++i) w_[block][i] += kColumnsOfBlock * kWeightBytes;
    }
  }

 private:
  static constexpr int kElementBytes = portable::size_bytes(C.element);
  static constexpr int kWeightBytes = portable::size_bytes(C.weight);

  int32_t x_rows_, there_;  // rows of x and columns from the lane's first on
  const char* w_[C.w_blocks][2];
  const char* x_;
  int64_t eight_rows_;
};

template <LinearSm80Config C>
using LinearSums = float[C.w_blocks][C.row_blocks][4];

// Adds the products with a piece of w.
template <LinearSm80Config C>
__device__ __forceinline__ void multiply(LinearSums<C>& sums, const LaneRows<C>& rows,
                                         const typename LaneRows<C>::Weights& weights, int piece) {
  constexpr int kElements = chunk_elements(C.element);  // of x that a load gives: two instructions' columns
#pragma unroll
  for (int i = 0; i < LaneRows<C>::kPiece / kElements; ++i) {
    typename Multiply<C.element>::A left[C.w_blocks][2];
#pragma unroll
    for (int block = 0; block < C.w_blocks; ++block) {
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        left[block][step] = left_operand<C.element, C.weight>(weights[block][0], weights[block][1], 2 * i + step);
      }
    }
#pragma unroll
    for (int j = 0; j < C.row_blocks; ++j) {
      uint32_t x[4];
      rows.load_x(x, j, piece * LaneRows<C>::kPieceOfWarp + i * kElements);
#pragma unroll
      for (int step = 0; step < 2; ++step) {
#pragma unroll
        for (int block = 0; block < C.w_blocks; ++block) {
          Multiply<C.element>::multiply(sums[block][j], left[block][step], x[2 * step], x[2 * step + 1]);
        }
      }
    }
  }
}

// The sums of all warps of a block, in shared memory.
template <LinearSm80Config C>
class SumsOfWarps {
 public:
  __device__ __forceinline__ explicit SumsOfWarps(int lane)
      : base_(ptx::shared_address(ptx::dynamic_shared()) + static_cast<uint32_t>(lane) * 16) {}

  __device__ __forceinline__ void store(int warp, const LinearSums<C>& sums) const {
#pragma unroll
    for (int block = 0; block < C.w_blocks; ++block) {
#pragma unroll
      for (int j = 0; j < C.row_blocks; ++j) {
        const auto& c = sums[block][j];
        ptx::store_chunk(address(warp, block, j),
                         {__float_as_uint(c[0]), __float_as_uint(c[1]), __float_as_uint(c[2]), __float_as_uint(c[3])});
      }
    }
  }
  // Of the first warp, the second and so on.
  __device__ __forceinline__ void add(float (&sum)[4], int block, int j) const {
    sum[0] = sum[1] = sum[2] = sum[3] = 0;
#pragma unroll
    for (int warp = 0; warp < portable::kLinearSm80Warps; ++warp) {
      const uint4 c = ptx::load_chunk(address(warp, block, j));
      sum[0] += __uint_as_float(c.x), sum[1] += __uint_as_float(c.y);
      sum[2] += __uint_as_float(c.z), sum[3] += __uint_as_float(c.w);
    }
  }

 private:
  __device__ __forceinline__ uint32_t address(int warp, int block, int j) const {
    const int idx = warp * portable::linear_blocks(C) + block * C.row_blocks + j;
    return base_ + static_cast<uint32_t>(idx * portable::kLinearSumBytes);
  }

  uint32_t base_;
};

// Warps share the block's sums out among them.
template <LinearSm80Config C>
__device__ __forceinline__ void store_results(const LinearSm80Params& p, const SumsOfWarps<C>& sums, int32_t w_block,
                                              int32_t first_row, int warp, int lane) {
  constexpr int kWarps = portable::kLinearSm80Warps;
  if constexpr (C.w_blocks == 2) {
    if (p.in.is_swiglu) {
      for (int j = warp; j < C.row_blocks; j += kWarps) {
        float gates[4], ups[4];
        sums.add(gates, 0, j);
        sums.add(ups, 1, j);
        OutColumns<C.element, true>(p.out, w_block * 16, lane).store(first_row + 8 * j, gates, ups);
      }
      return;
    }
  }
  for (int idx = warp; idx < portable::linear_blocks(C); idx += kWarps) {
    const int block = idx / C.row_blocks, j = idx % C.row_blocks;
    float sum[4];
    sums.add(sum, block, j);
    OutColumns<C.element, false>(p.out, (w_block * C.w_blocks + block) * 16, lane).store(first_row + 8 * j, sum);
  }
}

// Grid: blocks of rows of w; neighbours have the same rows of w where there are more rows of x than a block has.
template <LinearSm80Config C>
__global__ void __launch_bounds__(portable::kLinearSm80Warps * 32, portable::blocks_per_sm(C))
    linear_sm80(const __grid_constant__ LinearSm80Params p) {
  using Rows = LaneRows<C>;
  const auto thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const auto block_idx = static_cast<int32_t>(blockIdx.x);
  const int32_t w_block = block_idx / p.row_tiles, first_row = block_idx % p.row_tiles * C.row_blocks * 8;
  Rows rows(p, w_block, first_row, warp, lane);

  typename Rows::Weights weights[Rows::kPieces];
  const auto follow_kernel_before = [] {
    ptx::wait_for_kernel_before();
    ptx::let_kernel_behind_start();
  };
  if (!p.in.weights_ready) follow_kernel_before();
#pragma unroll
  for (int piece = 0; piece < Rows::kPieces; ++piece) rows.load(weights[piece], piece, 0);
  if (p.in.weights_ready) follow_kernel_before();

  LinearSums<C> sums = {};
#pragma unroll 1
  for (int32_t left = p.in.in_features - warp * Rows::kColumnsOfWarp; left > 0; left -= Rows::kColumnsOfBlock) {
#pragma unroll
    for (int piece = 0; piece < Rows::kPieces; ++piece) {
      multiply<C>(sums, rows, weights[piece], piece);
      rows.load(weights[piece], piece, 1);
    }
    rows.advance();
  }
  const SumsOfWarps<C> of_warps(lane);
  of_warps.store(warp, sums);
  __syncthreads();
  store_results(p, of_warps, w_block, first_row, warp, lane);
}

}  // namespace tessella::device
