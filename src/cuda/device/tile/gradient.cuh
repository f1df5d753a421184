// Stores rows of a gradient from accumulators, which have the layout of ptx/mma.cuh.
#pragma once

#include "cuda/device/tile/multiply.cuh"
#include "cuda/device/tile/piece.cuh"
#include "portable/backward_params.hpp"

namespace tessella::device {

using portable::GradientParams;

// Stores `value` as element `at` of a gradient, or adds it to the element.
template <Element E>
__device__ __forceinline__ void store_gradient(void* data, int64_t at, float value, bool is_f32, bool accumulates) {
  if (E == Element::f32 || is_f32) {
    float* to = static_cast<float*>(data) + at;
    *to = accumulates ? *to + value : value;
  } else if constexpr (E != Element::f32) {
    uint16_t* to = static_cast<uint16_t*>(data) + at;
    if (accumulates) value += to_float<E>(data, at);
    *to = static_cast<uint16_t>(Multiply<E>::pack(value, 0));
  }
}

// Stores factor * c: 16 MBlocks rows of a gradient from `row` on, 8 Blocks columns from `column` on. Rows from `end` on
// and columns from head_dim on do not exist. at_row(i): elements from data to row i.
template <Element E, int MBlocks, int Blocks, class AtRow>
__device__ __forceinline__ void store_gradients(const GradientParams& to, const float (&c)[MBlocks][Blocks][4],
                                                float factor, int32_t row, int32_t end, int32_t column,
                                                int32_t head_dim, int lane, const AtRow& at_row) {
#pragma unroll
  for (int m = 0; m < MBlocks; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int32_t i = row + m * 16 + r * 8 + lane / 4;
      if (i >= end) continue;
      const int64_t at = at_row(i);
#pragma unroll
      for (int j = 0; j < Blocks; ++j) {
        const int32_t first = column + j * 8 + lane % 4 * 2;
        const float pair[2] = {factor * c[m][j][r * 2], factor * c[m][j][r * 2 + 1]};
        if (E != Element::f32 && !to.is_f32 && !to.accumulates && first + 1 < head_dim && (at + first) % 2 == 0 &&
            reinterpret_cast<uintptr_t>(to.tensor.data) % 4 == 0) {
          if constexpr (E != Element::f32) {
            *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(to.tensor.data) + at + first) =
                Multiply<E>::pack(pair[0], pair[1]);
          }
          continue;
        }
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          if (first + n < head_dim) {
            store_gradient<E>(to.tensor.data, at + first + n, pair[n], to.is_f32 != 0, to.accumulates != 0);
          }
        }
      }
    }
  }
}

// Stores a warp's rows of a gradient from shared memory, where they are floats: row i, Stride bytes behind the one
// before, is row first_row + row + i of the gradient's head at `head`, unless row + i >= end.
template <Element E, int HeadDim, int Rows, int Stride>
__device__ __forceinline__ void store_gradient_rows(const GradientParams& to, uint32_t s_rows, int64_t head,
                                                    int32_t first_row, int32_t row, int32_t end, int32_t head_dim,
                                                    int lane) {
  static_assert(E != Element::f32);
  constexpr int kColumns = 4, kPieces = HeadDim / kColumns;
  const bool has_vectors = !to.is_f32 && !to.accumulates && head_dim % kColumns == 0 &&
                           (head | to.tensor.row_stride) % kColumns == 0 &&
                           reinterpret_cast<uintptr_t>(to.tensor.data) % (kColumns * 2) == 0;
#pragma unroll 4
  for (int piece = lane; piece < Rows * kPieces; piece += 32) {
    const int i = piece / kPieces, column = piece % kPieces * kColumns;
    if (row + i >= end || column >= head_dim) continue;
    const uint4 words = ptx::load_chunk(s_rows + i * Stride + column * 4);
    const int64_t at = head + (first_row + row + i) * to.tensor.row_stride + column;
    const float values[kColumns] = {__uint_as_float(words.x), __uint_as_float(words.y), __uint_as_float(words.z),
                                    __uint_as_float(words.w)};
    if (has_vectors) {
      store_piece<E>(to.tensor.data, at, values);
      continue;
    }
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      if (column + n < head_dim) {
        store_gradient<E>(to.tensor.data, at + n, values[n], to.is_f32 != 0, to.accumulates != 0);
      }
    }
  }
}

}  // namespace tessella::device
