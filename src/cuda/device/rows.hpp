// Rows of out and lse: those that need no product, and one straight from a warp's accumulators, whose places are those
// of ptx/mma.hpp.
#pragma once

#include "cuda/device/multiply.hpp"
#include "cuda/device/schedule.hpp"
#include "cuda/device/sequence.hpp"
#include "cuda/device/softmax.hpp"
#include "portable/forward_config.hpp"
#include "portable/forward_params.hpp"

namespace tessella::device {

// Writes rows that need no product, by Threads threads of a block or a warp.
template <int Threads>
struct ZeroRows {
  const portable::ForwardParams& p;
  const WorkTile& work;
  const Sequence& sequence;
  int32_t first_column, end_column;
  bool is_wide;  // out is fp32

  static constexpr int kUnroll = Threads == 32 ? 1 : 4;  // a warp that writes them beside others has few registers

  // out 0 and this lse in rows [first, end) of the sequence.
  __device__ __forceinline__ void write(int32_t first, int32_t end, float lse) const {
    const auto thread = static_cast<int32_t>(threadIdx.x) % Threads;
#pragma unroll kUnroll
    for (int32_t i = first; i < end; ++i) {
      const int64_t row = sequence.row_q + i;
      const int64_t at =
          work.batch_idx * p.out.batch_stride + work.head_idx * p.out.head_stride + row * p.out.row_stride;
#pragma unroll kUnroll
      for (int32_t c = first_column + thread; c < end_column; c += Threads) {
        if (is_wide) {
          static_cast<float*>(p.out.data)[at + c] = 0;
        } else {
          static_cast<uint16_t*>(p.out.data)[at + c] = 0;
        }
      }
      if (p.lse.data != nullptr && first_column == 0 && thread == 0) {
        static_cast<float*>(p.lse.data)[work.batch_idx * p.lse.batch_stride + work.head_idx * p.lse.head_stride +
                                        row * p.lse.row_stride] = lse;
      }
    }
  }

  // Rows that belong to the sequence and to no query; the block of tile t takes tiles t, t + tiles_q, ...
  __device__ __forceinline__ void write_without_query(int32_t tile_q) const {
#pragma unroll kUnroll
    for (int32_t first = work.tile_idx * tile_q; first < sequence.slots_q; first += p.tiles_q * tile_q) {
      write(max(first, sequence.len_q), min(first + tile_q, sequence.slots_q), -kInfinity);
    }
  }

  // The tile's queries, where none sees a key: the lse is that of a sink alone.
  __device__ __forceinline__ void write_without_keys(int32_t tile_q) const {
    const float lse =
        p.sink.data == nullptr ? -kInfinity : static_cast<const float*>(p.sink.data)[work.head_idx * p.sink.stride];
    write(work.tile_idx * tile_q, min((work.tile_idx + 1) * tile_q, sequence.len_q), lse);
  }
};

// Four words of four lanes that share a row: lane t gets the words of all four for block t.
__device__ __forceinline__ uint4 transpose_quad(const uint32_t (&words)[4], int lane) {
  const bool odd = (lane & 1) != 0, high = (lane & 2) != 0;
  // Pairs of lanes, then pairs of pairs: each time a lane keeps the half it is to own and gives the other.
  const uint32_t given0 = odd ? words[0] : words[1], given1 = odd ? words[2] : words[3];
  const uint32_t got0 = __shfl_xor_sync(kAllLanes, given0, 1), got1 = __shfl_xor_sync(kAllLanes, given1, 1);
  const uint2 low = odd ? make_uint2(got0, words[1]) : make_uint2(words[0], got0);  // block `odd`
  const uint2 up = odd ? make_uint2(got1, words[3]) : make_uint2(words[2], got1);   // block 2 + `odd`
  const uint2 given = high ? low : up, kept = high ? up : low;
  const uint2 got = make_uint2(__shfl_xor_sync(kAllLanes, given.x, 2), __shfl_xor_sync(kAllLanes, given.y, 2));
  return high ? make_uint4(got.x, got.y, kept.x, kept.y) : make_uint4(kept.x, kept.y, got.x, got.y);
}

// Row r (0 or 1) of the lane's accumulators to out, from element `at` on. All lanes of the warp call it.
template <portable::ForwardConfig C, int BlocksV>
__device__ __forceinline__ void store_row(const portable::ForwardParams& p, const float (&o)[BlocksV][4], int r,
                                          int64_t at, int lane, bool is_there) {
  const int32_t columns = p.head_dim_v;
  if (p.out_is_f32) {
    float* to = static_cast<float*>(p.out.data) + at;
#pragma unroll
    for (int j = 0; j < BlocksV; ++j) {
      const int32_t column = j * 8 + lane % 4 * 2;
      if (!is_there || column >= columns) continue;
      if (p.out_vector_store) {
        *reinterpret_cast<float2*>(to + column) = make_float2(o[j][r * 2], o[j][r * 2 + 1]);
      } else {
        to[column] = o[j][r * 2];
        if (column + 1 < columns) to[column + 1] = o[j][r * 2 + 1];
      }
    }
    return;
  }
  uint16_t* to = static_cast<uint16_t*>(p.out.data) + at;
#pragma unroll
  for (int j = 0; j < BlocksV; j += 4) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = Multiply<C.element>::pack(o[j + i][r * 2], o[j + i][r * 2 + 1]);
    if (p.out_vector_store) {
      const uint4 chunk = transpose_quad(words, lane);
      const int32_t column = (j + lane % 4) * 8;
      if (is_there && column < columns) *reinterpret_cast<uint4*>(to + column) = chunk;
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int32_t column = (j + i) * 8 + lane % 4 * 2;
        if (is_there && column < columns) to[column] = static_cast<uint16_t>(words[i]);
        if (is_there && column + 1 < columns) to[column + 1] = static_cast<uint16_t>(words[i] >> 16);
      }
    }
  }
}

}  // namespace tessella::device
