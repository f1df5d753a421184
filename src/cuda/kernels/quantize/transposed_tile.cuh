// Tiles of a transposed tensor of 8 bits, through shared memory: what quantize_tiles and dequantize_tiles share.
#pragma once

#include "cuda/kernels/quantize/quantize_row.cuh"

namespace tessella::device {

// The tile that a block works on: rows [begin, begin + kRows) of one head. In shared memory its columns lie kPitch
// bytes apart, each with its rows in the order of key_place().
template <QuantizeConfig C>
struct TransposedTile {
  static constexpr int32_t kRows = portable::tile_rows(C), kPitch = portable::tile_pitch(C);
  static constexpr int32_t kWords = kRows / 4;                                         // of a column
  static constexpr int32_t kAtOnce = portable::kQuantizeThreads / RowLane<C>::kLanes;  // rows

  int32_t batch, head, begin;

  // idx: of p.entries tiles.
  __device__ __forceinline__ TransposedTile(const QuantizeParams& p, int64_t idx) {
    const int32_t padded =
        (p.tensor_rows.value + portable::kTransposedRows - 1) / portable::kTransposedRows * portable::kTransposedRows;
    const int64_t of_batch = idx / (padded / kRows);
    batch = static_cast<int32_t>(of_batch / p.heads);
    head = static_cast<int32_t>(of_batch - int64_t{batch} * p.heads);
    begin = static_cast<int32_t>(idx - of_batch * (padded / kRows)) * kRows;
  }

  // Calls f(tile) for each tile of the block. All of its threads are done with a tile before the next one.
  template <class F>
  __device__ __forceinline__ static void for_tiles(const QuantizeParams& p, F&& f) {
    for (int64_t idx = blockIdx.x; idx < p.entries; idx += gridDim.x) {
      f(TransposedTile(p, idx));
      __syncthreads();
    }
  }

  // None behind the tensor's last row.
  __device__ __forceinline__ HeadRow head_row(const QuantizeParams& p, int32_t row) const {
    HeadRow r;
    if (begin + row < p.tensor_rows.value) r = {portable::sequence_row(p.tables, batch, begin + row), head};
    return r;
  }

  // Calls f(column, word, at) for the thread's words of the first `columns` columns; at: of the word in shared memory.
  template <class F>
  __device__ __forceinline__ static void for_words(int32_t columns, F&& f) {
    for (auto i = static_cast<int32_t>(threadIdx.x); i < columns * kWords; i += portable::kQuantizeThreads) {
      const int32_t column = i / kWords, word = i % kWords;
      f(column, word, column * kPitch + 4 * word);
    }
  }
  // Where a word lies in the tensor.
  __device__ __forceinline__ int64_t offset(const QuantizeStrides& strides, int32_t column, int32_t word) const {
    return offset_of(strides, batch, column, head) + begin + 4 * word;
  }
};

}  // namespace tessella::device
