// copy_pages copies pages of pools to other pages of the same pools. A block copies one portion of one page at a time.
// For Ampere and later.
#pragma once

#include "cuda/device/ptx/dependent.cuh"
#include "cuda/kernels/copy_pages/params.cuh"

namespace tessella::device {

using portable::CopyPagesConfig;
using portable::CopyPagesParams;
using portable::PoolParams;

template <int kBytes>
struct PieceOf;
template <>
struct PieceOf<16> {
  using Type = uint4;
};
template <>
struct PieceOf<8> {
  using Type = uint2;
};
template <>
struct PieceOf<4> {
  using Type = uint32_t;
};
template <>
struct PieceOf<2> {
  using Type = uint16_t;
};
template <>
struct PieceOf<1> {
  using Type = uint8_t;
};

// The offset of a piece from the page's first element.
__device__ __forceinline__ int64_t piece_at(const PoolParams& pool, int64_t idx) {
  if (pool.run == pool.pieces) return idx;
  const int64_t run = idx / pool.run;
  const int64_t outer = run / pool.inner;
  return outer * pool.outer_stride + (run - outer * pool.inner) * pool.inner_stride + (idx - run * pool.run);
}

// Grid: as many blocks as fit on the GPU; each loops over portions.
template <CopyPagesConfig C>
__global__ void __launch_bounds__(portable::kCopyPagesThreads, portable::kCopyPagesBlocksPerSm)
    copy_pages(const __grid_constant__ CopyPagesParams p) {
  using Piece = typename PieceOf<C.piece_bytes>::Type;
  constexpr int32_t kThreads = portable::kCopyPagesThreads, kPieces = portable::kCopyPagesPieces;
  ptx::wait_for_kernel_before();
  ptx::let_kernel_behind_start();
  for (int64_t task = blockIdx.x; task < p.num_tasks; task += gridDim.x) {
    const int64_t whole = task / p.portions;
    const int64_t pool_idx = whole / p.num_pairs;
    const auto* pair =
        static_cast<const int32_t*>(p.pairs.data) + (whole - pool_idx * p.num_pairs) * p.pairs.batch_stride;
    const int32_t from = pair[0], into = pair[p.pairs.stride];
    const bool is_copied = from >= 0 && from < p.num_pages && into >= 0 && into < p.num_pages && from != into;
    if (!is_copied) continue;
    const PoolParams& pool = p.pools[pool_idx];
    const auto* source = static_cast<const Piece*>(pool.data) + from * pool.page_stride;
    auto* target = static_cast<Piece*>(pool.data) + into * pool.page_stride;
    const int64_t first = (task - whole * p.portions) * (kThreads * kPieces) + static_cast<int64_t>(threadIdx.x);
    Piece pieces[kPieces];
    int64_t at[kPieces];
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int64_t idx = first + i * kThreads;
      at[i] = idx < pool.pieces ? piece_at(pool, idx) : -1;
      if (at[i] >= 0) pieces[i] = source[at[i]];
    }
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      if (at[i] >= 0) target[at[i]] = pieces[i];
    }
  }
}

}  // namespace tessella::device
