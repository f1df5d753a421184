// append: new rows of keys and values go into a cache, of pages or contiguous, keys and queries rotated on their way
// (RoFormer, arXiv 2104.09864). A few threads have a row of one head together; each finds out for itself where the row
// goes, from tables that are in the caches of the GPU. Ampere and later; nothing is kept in shared memory.
#pragma once

#include "cuda/device/ptx/dependent.hpp"
#include "cuda/device/score/rotary.hpp"
#include "cuda/device/tile/piece.hpp"
#include "portable/append_params.hpp"

namespace tessella::device {

using portable::AppendConfig;
using portable::AppendParams;
using portable::AppendRows;
using portable::NewRow;

// N elements as they are: their bits, whatever they mean.
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

// One row of one head; rotary_dim 0: it is copied.
template <AppendConfig C>
__device__ __forceinline__ void append_row(const AppendParams& p, const AppendRows& rows, const NewRow& at,
                                           int64_t into_batch, int64_t into_row, int32_t head, int32_t rotary_dim,
                                           int32_t lane) {
  constexpr int N = portable::piece(C);
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

// Grid: as many blocks as the GPU holds; each goes over rows.
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
    if (idx >= p.rows) return;
    const auto token = static_cast<int32_t>(idx / p.heads);
    auto head = static_cast<int32_t>(idx - int64_t{token} * p.heads);
    const NewRow at = portable::new_row(p.tables, token);
    if (!at.is_new) continue;
    if (head < p.k.heads) {
      if (at.is_kept) append_row<C>(p, p.k, at, at.slot, at.row, head, p.rotary_dim, lane);
      continue;
    }
    head -= p.k.heads;
    if (head < p.v.heads) {
      if (at.is_kept) append_row<C>(p, p.v, at, at.slot, at.row, head, 0, lane);
      continue;
    }
    append_row<C>(p, p.q, at, at.from_batch, at.from_row, head - p.v.heads, p.rotary_dim, lane);
  }
}

}  // namespace tessella::device
