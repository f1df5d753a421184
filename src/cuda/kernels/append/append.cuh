// append writes new rows of keys and values into a cache (pages or contiguous) and rotates keys and queries on the way
// (RoFormer, arXiv 2104.09864). A few threads handle one row of one head. Each thread reads from the tables where the
// row goes; the tables stay in the GPU's caches. For Ampere and later. It uses no shared memory.
#pragma once

#include "cuda/device/ptx/dependent.cuh"
#include "cuda/device/score/rotary.cuh"
#include "cuda/device/tile/piece.cuh"
#include "cuda/kernels/append/params.cuh"
#include "portable/quantize.hpp"

namespace tessella::device {

using portable::AppendConfig;
using portable::AppendParams;
using portable::AppendRows;
using portable::NewRow;

// Copies N elements bit by bit.
template <Element E, int N>
__device__ __forceinline__ void copy_piece(const void* from, int64_t from_at, void* into, int64_t into_at) {
  const auto* source = static_cast<const char*>(from) + from_at * portable::size_bytes(E);
  auto* target = static_cast<char*>(into) + into_at * portable::size_bytes(E);
  if constexpr (N > 1) {
    static_assert(N * portable::size_bytes(E) == 16);
    *reinterpret_cast<uint4*>(target) = *reinterpret_cast<const uint4*>(source);
  } else if constexpr (E == Element::f32) {
    *reinterpret_cast<uint32_t*>(target) = *reinterpret_cast<const uint32_t*>(source);
  } else {
    *reinterpret_cast<uint16_t*>(target) = *reinterpret_cast<const uint16_t*>(source);
  }
}

// Copies or rotates one row of one head; rotary_dim 0: it copies.
template <AppendConfig C>
__device__ __forceinline__ void append_row(const AppendParams& p, const AppendRows& rows, const NewRow& at,
                                           int64_t into_batch, int64_t into_row, int32_t head, int32_t rotary_dim,
                                           int32_t lane) {
  constexpr int N = portable::row_piece(C);
  const int64_t from_at =
      at.from_batch * rows.from_batch_stride + at.from_row * rows.from_row_stride + head * rows.from_head_stride;
  const int64_t into_at =
      into_batch * rows.into_batch_stride + into_row * rows.into_row_stride + head * rows.into_head_stride;
  const int32_t lanes = 1 << p.log2_lanes;
  if constexpr (C.rotates) {
    constexpr Element kAngles = C.angles_are_f32 ? Element::f32 : C.element;
    const Angles angles{p.cos, p.sin, at.position * p.cos_stride, at.position * p.sin_stride};
    for (int32_t unit = lane; unit < rotary_units<N, C.interleaved>(rotary_dim); unit += lanes) {
      rotate_pieces<C.element, kAngles, N, C.interleaved>(rows.from, from_at, rows.into, into_at, angles, unit,
                                                          rotary_dim);
    }
  }
  for (int32_t column = rotary_dim + lane * N; column < rows.head_dim; column += lanes * N) {
    copy_piece<C.element, N>(rows.from, from_at + column, rows.into, into_at + column);
  }
}

// N values of a row to be quantized, from a column on.
template <AppendConfig C, int N>
__device__ __forceinline__ void load_values(const AppendParams& p, const AppendRows& rows, const NewRow& at,
                                            int32_t head, int32_t column, int32_t rotary_dim, float (&values)[N]) {
  constexpr Element kAngles = C.angles_are_f32 ? Element::f32 : C.element;
  const int64_t from_at =
      at.from_batch * rows.from_batch_stride + at.from_row * rows.from_row_stride + head * rows.from_head_stride;
  const Angles angles{p.cos, p.sin, at.position * p.cos_stride, at.position * p.sin_stride};
  load_rotated<C.element, kAngles, N, C.interleaved>(rows.from, from_at, angles, column, C.rotates ? rotary_dim : 0,
                                                     values);
}

// The largest magnitude among the thread's values of a row.
template <AppendConfig C>
__device__ __forceinline__ uint32_t largest_magnitude(const AppendParams& p, const AppendRows& rows, const NewRow& at,
                                                      int32_t head, int32_t rotary_dim, int32_t lane) {
  constexpr int N = portable::piece(C);
  uint32_t most = 0;
  for (int32_t column = lane * N; column < rows.head_dim; column += N << p.log2_lanes) {
    float values[N];
    load_values<C>(p, rows, at, head, column, rotary_dim, values);
#pragma unroll
    for (int i = 0; i < N; ++i) most = max(most, portable::magnitude(values[i]));
  }
  return most;
}

// Stores N elements of a cache in N * bits / 8 bytes, aligned to that size. at: index of the first one.
template <Element Q, int N>
__device__ __forceinline__ void store_quantized(void* into, int64_t at, const float (&values)[N], float divisor) {
  static_assert(portable::is_of_caches(Q));
  constexpr int kBits = portable::bits_of(Q), kBytes = N * kBits / 8, kInWord = 32 / kBits;
  auto* bytes = static_cast<uint8_t*>(into) + at * kBits / 8;
  uint32_t words[(kBytes + 3) / 4] = {};
#pragma unroll
  for (int i = 0; i < N; ++i) words[i / kInWord] |= portable::quantized(values[i], divisor, Q) << (i % kInWord * kBits);
  if constexpr (kBytes == 8) {
    *reinterpret_cast<uint2*>(bytes) = {words[0], words[1]};
  } else if constexpr (kBytes == 4) {
    *reinterpret_cast<uint32_t*>(bytes) = words[0];
  } else if constexpr (kBytes == 2) {
    *reinterpret_cast<uint16_t*>(bytes) = static_cast<uint16_t>(words[0]);
  } else {
    static_assert(kBytes == 1);
    *bytes = static_cast<uint8_t>(words[0]);
  }
}

// Writes one row of one head of a quantized cache. most: the row's largest magnitude, if scales are computed.
template <AppendConfig C>
__device__ __forceinline__ void append_quantized(const AppendParams& p, const AppendRows& rows, const NewRow& at,
                                                 int32_t head, int32_t rotary_dim, int32_t lane, uint32_t most) {
  constexpr int N = portable::piece(C);
  float* const at_scale =
      rows.scale + (at.slot * rows.scale_batch_stride + at.row * rows.scale_row_stride + head * rows.scale_head_stride);
  float scale;
  if constexpr (C.computes_scales) {
    scale = portable::scale_of(most, C.cache);
    if (lane == 0) *at_scale = scale;
  } else {
    scale = *at_scale;
  }
  const float divisor = portable::divisor_of(scale);
  const int64_t into_at =
      at.slot * rows.into_batch_stride + at.row * rows.into_row_stride + head * rows.into_head_stride;
  for (int32_t column = lane * N; column < rows.head_dim; column += N << p.log2_lanes) {
    float values[N];
    load_values<C>(p, rows, at, head, column, rotary_dim, values);
    store_quantized<C.cache>(rows.into, into_at + column, values, divisor);
  }
}

// Writes one row of one head of k or v.
template <AppendConfig C>
__device__ __forceinline__ void append_to_cache(const AppendParams& p, const AppendRows& rows, const NewRow& at,
                                                int32_t head, int32_t rotary_dim, int32_t lane, uint32_t most) {
  if (!at.has_slot) return;
  if constexpr (C.cache == C.element) {
    append_row<C>(p, rows, at, at.slot, at.row, head, rotary_dim, lane);
  } else {
    append_quantized<C>(p, rows, at, head, rotary_dim, lane, most);
  }
}

// Grid: as many blocks as fit on the GPU; each loops over rows.
template <AppendConfig C>
__global__ void __launch_bounds__(portable::kAppendThreads, portable::kAppendBlocksPerSm)
    append(const __grid_constant__ AppendParams p) {
  ptx::wait_for_kernel_before();
  ptx::let_kernel_behind_start();
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t lane = thread & ((1 << p.log2_lanes) - 1);
  const int64_t rows_at_once = portable::kAppendThreads >> p.log2_lanes;
  for (int64_t first = blockIdx.x * rows_at_once; first < p.rows; first += gridDim.x * rows_at_once) {
    const int64_t idx = first + (thread >> p.log2_lanes);
    NewRow at;
    int32_t head = 0;
    if (idx < p.rows) {
      const auto token = static_cast<int32_t>(idx / p.heads);
      head = static_cast<int32_t>(idx - int64_t{token} * p.heads);
      at = portable::new_row(p.tables, token);
    }
    const int32_t head_v = head - p.k.heads;
    uint32_t most = 0;
    if constexpr (C.computes_scales) {  // all lanes of a warp call it, with any rows
      if (at.has_slot && head_v < 0) {
        most = largest_magnitude<C>(p, p.k, at, head, p.rotary_dim, lane);
      } else if (at.has_slot && head_v < p.v.heads) {
        most = largest_magnitude<C>(p, p.v, at, head_v, 0, lane);
      }
      for (int32_t step = (1 << p.log2_lanes) / 2; step > 0; step /= 2) {
        most = max(most, __shfl_xor_sync(0xFFFFFFFF, most, step));
      }
    }
    if (!at.is_new) continue;
    if (head_v < 0) {
      append_to_cache<C>(p, p.k, at, head, p.rotary_dim, lane, most);
    } else if (head_v < p.v.heads) {
      append_to_cache<C>(p, p.v, at, head_v, 0, lane, most);
    } else {
      append_row<C>(p, p.q, at, at.from_batch, at.from_row, head_v - p.v.heads, p.rotary_dim, lane);
    }
  }
}

}  // namespace tessella::device
