// The steps around another forward kernel that serve tensors of 8 bits (cuda/forward_widened):
//   widen    copies of q, k and v: elements of e4m3, e5m2 or i8 times their scales, rounded to 16 bits once. Keys in
//            pages or slots are brought together. The entries of amax become 0
//   narrow   out = result / out_scale, rounded once, and amax, the largest |result| of each entry
// A few threads handle one row of one head. For Ampere and later. They use no shared memory.
#pragma once

#include "cuda/device/tile/piece.cuh"
#include "cuda/device/tile/widened.cuh"
#include "cuda/kernels/forward_widened/params.cuh"
#include "portable/float8.hpp"
#include "portable/quantize.hpp"
#include "portable/sequence_rows.hpp"

namespace tessella::device {

using portable::NarrowConfig;
using portable::NarrowParams;
using portable::OperandParams;
using portable::WidenConfig;
using portable::WidenParams;
using portable::WidenRows;
using portable::WidenTensor;

__device__ __forceinline__ int32_t entry(const portable::TableParams& table, int64_t batch_idx, int64_t idx = 0) {
  return static_cast<const int32_t*>(table.data)[batch_idx * table.batch_stride + idx * table.stride];
}

// One row of one head, of q, out, k or v.
struct WidenRow {
  int64_t batch_idx, row_idx;  // of the copy
  int64_t sequence;            // -1: of none
  int32_t head_idx;
  bool is_used;  // of a sequence, and within its length

  __device__ __forceinline__ WidenRow(const WidenRows& p, int64_t idx) {
    const int64_t token = idx / p.heads;
    head_idx = static_cast<int32_t>(idx - token * p.heads);
    batch_idx = token / p.rows;
    row_idx = token - batch_idx * p.rows;
    sequence = p.cu_seqlens.data == nullptr ? batch_idx : sequence_of(p);
    int64_t row_of_sequence = row_idx;
    if (p.cu_seqlens.data != nullptr && sequence >= 0) row_of_sequence -= entry(p.cu_seqlens, 0, sequence);
    is_used = sequence >= 0 && (p.lengths.data == nullptr || row_of_sequence < entry(p.lengths, 0, sequence));
  }

  // The offset of its factor in a tensor of them.
  __device__ __forceinline__ int64_t scale_at(const WidenRows& p, const OperandParams& t, int64_t of_batch,
                                              int64_t of_row) const {
    const int64_t block = p.scale_block.value == 0 ? 0 : p.scale_block.quotient(static_cast<int32_t>(of_row));
    return of_batch * t.batch_stride + block * t.row_stride + head_idx * t.head_stride;
  }
  // Of rows that lie as in the copy.
  __device__ __forceinline__ int64_t scale_at(const WidenRows& p, const OperandParams& t) const {
    return scale_at(p, t, sequence, row_idx);  // packed rows have factors of sequences, or one batch of stride 0
  }

 private:
  // The last sequence that begins at or before the row. Any table gives some sequence or none.
  __device__ __forceinline__ int64_t sequence_of(const WidenRows& p) const {
    int64_t begin = 0, end = p.sequences;  // it is in [begin, end)
    if (end == 0 || row_idx >= entry(p.cu_seqlens, 0, end)) return -1;
    while (end - begin > 1) {
      const int64_t middle = (begin + end) / 2;
      (row_idx >= entry(p.cu_seqlens, 0, middle) ? begin : end) = middle;
    }
    return begin;
  }
};

__device__ __forceinline__ int64_t offset(const OperandParams& t, int64_t batch_idx, int64_t row_idx, int32_t head) {
  return batch_idx * t.batch_stride + row_idx * t.row_stride + head * t.head_stride;
}

// One row; from_at and into_at: of its first elements.
template <WidenConfig C>
__device__ __forceinline__ void widen_row(const WidenTensor& t, int64_t from_at, int64_t into_at, float scale,
                                          int32_t lane) {
  const uint8_t* from = static_cast<const uint8_t*>(t.from.data) + from_at;
  if (t.vectors == 0) {
    for (int32_t column = lane; column < t.head_dim; column += 1 << t.log2_lanes) {
      float values[4];
      word_to_floats<C.from>(from[column * t.column_stride], values);
      const float product[1] = {values[0] * scale};
      store_piece<C.into>(t.into.data, into_at + column, product);
    }
    return;
  }
  constexpr int32_t kPiece = portable::kWidenPiece;
  for (int32_t column = lane * kPiece; column < t.head_dim; column += kPiece << t.log2_lanes) {
    const uint4 four = *reinterpret_cast<const uint4*>(from + column);
    const uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float values[8];
      word_to_floats<C.from>(words[2 * half], values);
      word_to_floats<C.from>(words[2 * half + 1], values + 4);
#pragma unroll
      for (int i = 0; i < 8; ++i) values[i] *= scale;
      store_piece<C.into>(t.into.data, into_at + column + half * 8, values);
    }
  }
}

__device__ __forceinline__ void clear_amax(const WidenParams& p) {
  const int64_t count = p.amax_batch * p.amax_blocks * p.q.heads;
  const int64_t first = int64_t{blockIdx.x} * portable::kWidenThreads + threadIdx.x;
  for (int64_t idx = first; idx < count; idx += int64_t{gridDim.x} * portable::kWidenThreads) {
    const int64_t block = idx / p.q.heads, batch_idx = block / p.amax_blocks;
    static_cast<float*>(p.amax.data)[offset(p.amax, batch_idx, block - batch_idx * p.amax_blocks,
                                            static_cast<int32_t>(idx - block * p.q.heads))] = 0;
  }
}

// Grid: as many blocks as fit on the GPU, of which each loops over rows; 4: q, k, v and amax.
template <WidenConfig C>
__global__ void __launch_bounds__(portable::kWidenThreads, portable::kWidenBlocksPerSm)
    widen(const __grid_constant__ WidenParams p) {
  if (blockIdx.y == portable::kWidenTensors) {
    if (p.amax.data != nullptr) clear_amax(p);
    return;
  }
  const WidenTensor& t = p.tensors[blockIdx.y];
  if (t.head_dim == 0) return;
  const WidenRows& rows = t.is_of_keys != 0 ? p.kv : p.q;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t lane = thread & ((1 << t.log2_lanes) - 1);
  const int32_t rows_at_once = portable::kWidenThreads >> t.log2_lanes;
  const int64_t count = rows.batch * rows.rows * rows.heads;
  for (int64_t idx = int64_t{blockIdx.x} * rows_at_once + (thread >> t.log2_lanes); idx < count;
       idx += int64_t{gridDim.x} * rows_at_once) {
    const WidenRow row(rows, idx);
    if (!row.is_used) continue;
    // Values of tables that leave the tensors are clamped.
    int64_t batch_idx = row.batch_idx, row_idx = row.row_idx;
    if (t.is_of_keys != 0 && p.page_table.data != nullptr) {
      const int32_t page = p.page_size.quotient(static_cast<int32_t>(row_idx));
      batch_idx = min(max(entry(p.page_table, row.batch_idx, page), 0), p.num_pages - 1);
      row_idx -= int64_t{page} * p.page_size.value;
    } else if (t.is_of_keys != 0 && p.cache_batch_idx.data != nullptr) {
      batch_idx = min(max(entry(p.cache_batch_idx, 0, row.batch_idx), 0), p.slots - 1);
    }
    float scale = 1;
    if (t.scale.data != nullptr) {
      const int64_t of_batch = rows.cu_seqlens.data != nullptr ? row.sequence : batch_idx;
      scale = static_cast<const float*>(t.scale.data)[row.scale_at(rows, t.scale, of_batch, row_idx)];
    }
    if (t.is_transposed != 0) row_idx = portable::key_place(row_idx);
    widen_row<C>(t, offset(t.from, batch_idx, row_idx, row.head_idx),
                 offset(t.into, row.batch_idx, row.row_idx, row.head_idx), scale, lane);
  }
}

// Bits of the nearest number of out, in the low ones.
template <Element E>
__device__ __forceinline__ uint32_t narrowed(float x) {
  if constexpr (E == Element::e4m3) return portable::to_float8(x).bits;
  if constexpr (E == Element::e5m2) return portable::to_e5m2(x).bits;
  return 0;
}

// Stores N elements of out: one, or a piece.
template <Element E, int N>
__device__ __forceinline__ void store_narrowed(void* to, int64_t at, const float (&values)[N]) {
  if constexpr (!portable::is_quantized(E)) {
    if constexpr (N == 1) {
      store_piece<E>(to, at, values);
    } else {
#pragma unroll
      for (int i = 0; i < N; i += 8) {
        float eight[8];
#pragma unroll
        for (int c = 0; c < 8; ++c) eight[c] = values[i + c];
        store_piece<E>(to, at + i, eight);
      }
    }
  } else {
    uint8_t* elements = static_cast<uint8_t*>(to) + at;
    if constexpr (N == 1) {
      elements[0] = static_cast<uint8_t>(narrowed<E>(values[0]));
    } else {
      static_assert(N == 16);
      uint32_t words[4] = {};
#pragma unroll
      for (int i = 0; i < N; ++i) words[i / 4] |= narrowed<E>(values[i]) << i % 4 * 8;
      *reinterpret_cast<uint4*>(elements) = {words[0], words[1], words[2], words[3]};
    }
  }
}

// A thread's part of a row of out. Returns the largest magnitude of its results.
template <NarrowConfig C, int N>
__device__ __forceinline__ uint32_t narrow_row(const NarrowParams& p, int64_t from_at, int64_t into_at, float divisor,
                                               int32_t lane) {
  uint32_t most = 0;
  for (int32_t column = lane * N; column < p.head_dim; column += N << p.log2_lanes) {
    float values[N];
    if constexpr (N == 1) {
      load_piece<Element::f32>(p.result.data, from_at + column, values);
    } else {
#pragma unroll
      for (int i = 0; i < N; i += 4) {
        float four[4];
        load_piece<Element::f32>(p.result.data, from_at + column + i, four);
#pragma unroll
        for (int c = 0; c < 4; ++c) values[i + c] = four[c];
      }
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
      most = max(most, portable::magnitude(values[i]));
      values[i] /= divisor;
    }
    if constexpr (C.out != Element::f32) store_narrowed<C.out>(p.out.data, into_at + column, values);
  }
  return most;
}

// Grid: as many blocks as fit on the GPU; each loops over rows.
template <NarrowConfig C>
__global__ void __launch_bounds__(portable::kWidenThreads, portable::kWidenBlocksPerSm)
    narrow(const __grid_constant__ NarrowParams p) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t lane = thread & ((1 << p.log2_lanes) - 1);
  const int32_t rows_at_once = portable::kWidenThreads >> p.log2_lanes;
  const int64_t count = p.rows.batch * p.rows.rows * p.rows.heads;
  // What a thread has of an entry goes there when it comes to another entry: as integers, sizes of floats keep their
  // order, and a NaN is above infinity.
  uint32_t* entry_of_most = nullptr;
  uint32_t most = 0;
  for (int64_t idx = int64_t{blockIdx.x} * rows_at_once + (thread >> p.log2_lanes); idx < count;
       idx += int64_t{gridDim.x} * rows_at_once) {
    const WidenRow row(p.rows, idx);
    float divisor = 1;  // rows of no query are zeros, and their factors may hold anything
    if (row.is_used && p.out_scale.data != nullptr) {
      divisor = portable::divisor_of(static_cast<const float*>(p.out_scale.data)[row.scale_at(p.rows, p.out_scale)]);
    }
    const int64_t from_at = offset(p.result, row.batch_idx, row.row_idx, row.head_idx);
    const int64_t into_at = offset(p.out, row.batch_idx, row.row_idx, row.head_idx);
    const uint32_t of_row = p.vectors != 0 ? narrow_row<C, portable::kWidenPiece>(p, from_at, into_at, divisor, lane)
                                           : narrow_row<C, 1>(p, from_at, into_at, divisor, lane);
    if (!row.is_used || p.amax.data == nullptr) continue;
    uint32_t* const entry_of_row = static_cast<uint32_t*>(p.amax.data) + row.scale_at(p.rows, p.amax);
    if (entry_of_row != entry_of_most) {
      if (entry_of_most != nullptr) atomicMax(entry_of_most, most);
      entry_of_most = entry_of_row;
      most = 0;
    }
    most = max(most, of_row);
  }
  if (entry_of_most != nullptr) atomicMax(entry_of_most, most);
}

}  // namespace tessella::device
