// dequantize: elements of 8 bits, times their scale, the Hadamard matrix undone and the mean added. For Ampere and
// later.
#pragma once

#include "cuda/device/ptx/dependent.cuh"
#include "cuda/device/tile/widened.cuh"
#include "cuda/kernels/quantize/transposed_tile.cuh"

namespace tessella::device {

// Writes the numbers of a row whose elements a lane has in words.
template <QuantizeConfig C, int N>
__device__ __forceinline__ void write_numbers(const QuantizeParams& p, const RowLane<C>& t, const HeadRow& r,
                                              const uint32_t (&words)[N]) {
  constexpr int kColumns = 4 * N, kPiece = portable::row_piece(C);
  const float scale = scale_of(p, r);
  float row[kColumns];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    word_to_floats<C.quantized>(words[i], row + 4 * i);
#pragma unroll
    for (int j = 0; j < 4; ++j) row[4 * i + j] = __fmul_rn(row[4 * i + j], scale);
  }
  if constexpr (C.hadamard) {
    hadamard(p, t, row);
    change_signs(t, row);
  }
  if (!r.at.exists) return;
  if constexpr (C.has_mean) {
    const float* mean = p.mean + offset_of(p.mean_strides, r.at.batch_idx, 0, r.head);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      if (t.first_column + i < p.head_dim) row[i] = __fadd_rn(row[i], mean[t.first_column + i]);
    }
  }
  const int64_t into_at = offset_of(p.out_strides, r.at.tensor_batch, r.at.row, r.head) + t.first_column;
#pragma unroll
  for (int i = 0; i < kColumns; i += kPiece) {
    if (t.first_column + i >= p.head_dim) break;
    float piece[kPiece];
#pragma unroll
    for (int j = 0; j < kPiece; ++j) piece[j] = row[i + j];
    store_piece<C.element>(p.out, into_at + i, piece);
  }
}

template <QuantizeConfig C>
__global__ void __launch_bounds__(portable::kQuantizeThreads, portable::blocks_per_sm(C))
    dequantize_rows(const __grid_constant__ QuantizeParams p) {
  ptx::wait_for_kernel_before();
  ptx::let_kernel_behind_start();
  constexpr int N = RowLane<C>::kColumns;
  const RowLane<C> t(p);
  for_rows<C>(p, t, [&](const HeadRow& r) {
    const auto* from =
        static_cast<const uint8_t*>(p.x) + offset_of(p.x_strides, r.at.tensor_batch, r.at.row, r.head) + t.first_column;
    uint32_t words[N / 4] = {};
    if constexpr (C.vectors) {
#pragma unroll
      for (int i = 0; i < N / 4; i += 4) {
        if (!r.at.exists || t.first_column >= p.head_dim) break;
        const uint4 four = *reinterpret_cast<const uint4*>(from + 4 * i);
        words[i] = four.x, words[i + 1] = four.y, words[i + 2] = four.z, words[i + 3] = four.w;
      }
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        if (!r.at.exists || t.first_column + i >= p.head_dim) break;
        words[i / 4] |= uint32_t{from[i]} << i % 4 * 8;
      }
    }
    write_numbers(p, t, r, words);
  });
}

// Columns of a transposed tensor into rows, through shared memory.
template <QuantizeConfig C>
__global__ void __launch_bounds__(portable::kQuantizeThreads, portable::blocks_per_sm(C))
    dequantize_tiles(const __grid_constant__ QuantizeParams p) {
  extern __shared__ __align__(128) char shared[];
  ptx::wait_for_kernel_before();
  ptx::let_kernel_behind_start();
  constexpr int N = RowLane<C>::kColumns;
  using Tile = TransposedTile<C>;
  const RowLane<C> t(p);
  Tile::for_tiles(p, [&](const Tile& tile) {
    Tile::for_words(C.columns, [&](int32_t column, int32_t word, int32_t at) {
      uint32_t bits = 0;
      if (column < p.head_dim) {
        const auto* from = static_cast<const uint8_t*>(p.x) + tile.offset(p.x_strides, column, word);
        if constexpr (C.vectors) {
          bits = *reinterpret_cast<const uint32_t*>(from);
        } else {
#pragma unroll
          for (int j = 0; j < 4; ++j) bits |= uint32_t{from[j]} << 8 * j;
        }
      }
      *reinterpret_cast<uint32_t*>(shared + at) = bits;
    });
    __syncthreads();
    for (int32_t row = t.row; row < Tile::kRows; row += Tile::kAtOnce) {
      const HeadRow r = tile.head_row(p, row);
      const auto place = static_cast<int32_t>(portable::key_place(row));
      uint32_t words[N / 4] = {};
#pragma unroll
      for (int i = 0; i < N; ++i) {
        words[i / 4] |= uint32_t{static_cast<uint8_t>(shared[(t.first_column + i) * Tile::kPitch + place])}
                        << i % 4 * 8;
      }
      write_numbers(p, t, r, words);
    }
  });
}

}  // namespace tessella::device
