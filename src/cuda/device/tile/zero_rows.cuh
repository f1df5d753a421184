// Rows of out and lse that need no product.
#pragma once

#include "cuda/device/tile/constants.cuh"
#include "cuda/device/tile/sequence.cuh"
#include "cuda/device/tile/work_tile.cuh"
#include "portable/output_params.hpp"
#include "portable/query_tiles.hpp"

namespace tessella::device {

// Elements from the start of out or lse to a row of the sequence.
template <class Tensor>
__device__ __forceinline__ int64_t row_offset(const Tensor& tensor, const WorkTile& work, const Sequence& sequence,
                                              int32_t row) {
  return work.batch_idx * tensor.batch_stride + work.head_idx * tensor.head_stride +
         (sequence.row_q + row) * tensor.row_stride;
}

// Writes rows that need no product, by Threads threads of a block or a warp. Its loops are not unrolled: the code is
// rare, and unrolled it would take registers from the other warps and fill the instruction cache.
template <int Threads>
struct ZeroRows {
  const portable::OutputParams& p;
  const WorkTile& work;
  const Sequence& sequence;
  int32_t first_column, end_column;
  bool is_wide;  // out is fp32

  // Writes out = 0 and this lse in rows [first, end) of the sequence.
  __device__ __forceinline__ void write(int32_t first, int32_t end, float lse) const {
    const auto thread = static_cast<int32_t>(threadIdx.x) % Threads;
#pragma unroll 1
    for (int32_t i = first; i < end; ++i) {
      const int64_t at = row_offset(p.out, work, sequence, i);
#pragma unroll 1
      for (int32_t c = first_column + thread; c < end_column; c += Threads) {
        if (is_wide) {
          static_cast<float*>(p.out.data)[at + c] = 0;
        } else {
          static_cast<uint16_t*>(p.out.data)[at + c] = 0;
        }
      }
      if (p.lse.data != nullptr && first_column == 0 && thread == 0) {
        static_cast<float*>(p.lse.data)[row_offset(p.lse, work, sequence, i)] = lse;
      }
    }
  }

  // Writes rows that belong to the sequence and to no query. The block of tile t takes tiles t, t + tiles_q, ...
  __device__ __forceinline__ void write_without_query(int32_t tile_q, int32_t tiles_q) const {
    if (sequence.slots_q == sequence.len_q) return;
#pragma unroll 1
    for (int32_t first = work.tile_idx * tile_q; first < sequence.slots_q; first += tiles_q * tile_q) {
      write(max(first, sequence.len_q), min(first + tile_q, sequence.slots_q), -kInfinity);
    }
  }

  // Writes rows of queries that see no key. Their lse is that of the sink alone.
  __device__ __forceinline__ void write_without_keys(const portable::QueryRange<int32_t>& queries,
                                                     const portable::TableParams& sink) const {
    const float lse =
        sink.data == nullptr ? -kInfinity : static_cast<const float*>(sink.data)[work.head_idx * sink.stride];
    write(queries.first, queries.end, lse);
  }
};

}  // namespace tessella::device
