// Products of a warpgroup whose operands lie in panels of 64 columns (tile.cuh), and what becomes of their results.
#pragma once

#include "cuda/device/ptx/wgmma.cuh"
#include "cuda/device/tile/gradient.cuh"
#include "cuda/device/tile/operand.cuh"
#include "cuda/device/tile/tile.cuh"
#include "cuda/kernels/backward_sm90/key_block_sm90.cuh"

namespace tessella::device {

// A block's two warpgroups that multiply, as a thread of one sees itself.
template <class BlockType>
struct MultiplyingWarpgroup {
  using Block = BlockType;
  static constexpr BackwardSm90Config C = Block::kConfig;
  static_assert(portable::are_one(C.score.elements));
  static constexpr Element kElement = C.score.elements.q;
  static constexpr int kTileQ = Block::kTileQ, kTileKv = Block::kTileKv;
  static constexpr int kThreads = 256;  // of both warpgroups
  static constexpr int kMeeting = 1;    // a named barrier

  const Block& block;
  const BackwardParams& p;
  int warpgroup, warp, lane;  // warp: of the warpgroup

  __device__ __forceinline__ explicit MultiplyingWarpgroup(const Block& of)
      : block(of),
        p(of.p),
        warpgroup(static_cast<int>(__shfl_sync(kAllLanes, threadIdx.x / 128, 0)) - 1),
        warp(static_cast<int>(threadIdx.x / 32 % 4)),
        lane(static_cast<int>(threadIdx.x % 32)) {}

  // Returns when both warpgroups are here.
  __device__ __forceinline__ static void meet() { ptx::named_wait(kMeeting, kThreads); }
};

// A warp is done with the slot.
template <class Ring>
__device__ __forceinline__ void release(const Ring& ring) {
  __syncwarp();
  if (ptx::elect()) ring.arrive_empty();
}

// Passes a thread's accumulators on in the ring's next slot: 16 bytes at `to`, and at every Threads times 16 bytes
// behind it.
template <int Threads, class Ring, int Blocks>
__device__ __forceinline__ void pass(Ring& ring, uint32_t to, const float (&d)[Blocks][4]) {
  ring.wait_empty();
#pragma unroll
  for (int j = 0; j < Blocks; ++j) {
    ptx::store_chunk(to + j * Threads * 16, {__float_as_uint(d[j][0]), __float_as_uint(d[j][1]),
                                             __float_as_uint(d[j][2]), __float_as_uint(d[j][3])});
  }
  __syncwarp();
  if (ptx::elect()) ring.arrive_full();
  ring.advance();
}

// Writes zeros in rows that take no part, of tiles in panels: their memory may hold NaN, and 0 * NaN is NaN. The
// Threads threads from First on call it; behind it they fence_async() and meet.
template <int Rows, int Columns, int First, int Threads, class IsActive, class... Tiles>
__device__ __forceinline__ void clear_rows(const IsActive& is_active, Tiles... s_tiles) {
  for (auto i = static_cast<int>(threadIdx.x - First); i < Rows * 8; i += Threads) {
    if (is_active(i / 8)) continue;
#pragma unroll
    for (int panel = 0; panel < Columns / kPanelColumns; ++panel) {
      (ptx::store_chunk(s_tiles + panel * Rows * kPanelRowBytes + i * 16, {0, 0, 0, 0}), ...);
    }
  }
}

template <int Blocks>
__device__ __forceinline__ void clear(float (&d)[Blocks][4]) {
#pragma unroll
  for (int j = 0; j < Blocks; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) d[j][i] = 0;
  }
}

// Starts products of 64 rows on the left and all Columns rows on the right, summed over the head dim. Both are in
// panels, of left_rows and Columns rows: K and q, V and d_out, or the other way round.
template <Element E, int HeadDim, int Columns>
__device__ __forceinline__ void begin_scores(float (&s)[Columns / 8][4], uint32_t s_left, int left_rows,
                                             uint32_t s_right) {
  const Operand<> left(s_left), right(s_right);
  ptx::fence_registers();
#pragma unroll
  for (int step = 0; step < HeadDim / 16; ++step) {
    const int panel = step / 4 * kPanelRowBytes, inside = step % 4 * 32;
    ptx::WarpgroupMma<E, Columns>::with_shared(s, left.at(panel * left_rows + inside),
                                               right.at(panel * Columns + inside), step > 0);
  }
  ptx::commit_products();
}

// Starts sums += left rows, summed over 16 Steps rows of a tile in panels.
template <Element E, int HeadDim, int Steps>
__device__ __forceinline__ void begin_sums(float (&sums)[HeadDim / 8][4], const uint32_t (&left)[Steps][4],
                                           uint32_t s_rows) {
  const Operand<> rows(s_rows, Steps * 16 * kPanelRowBytes);
  ptx::fence_registers();
#pragma unroll
  for (int step = 0; step < Steps; ++step) {
    ptx::WarpgroupMma<E, HeadDim>::template with_registers<ptx::Contiguous::columns>(
        sums, left[step], rows.at(step * 16 * kPanelRowBytes), true);
  }
  ptx::commit_products();
}

inline constexpr int kWarpRows = 16;  // of a warp's accumulators

// Stores factor * sums as a warp's rows of a gradient, by way of shared memory at s_rows, which holds floats: row i of
// them is row first_row + row + i of the gradient's head at `head`, unless row + i >= end.
template <Element E, int HeadDim>
__device__ __forceinline__ void store_sums(const GradientParams& to, const float (&sums)[HeadDim / 8][4], float factor,
                                           uint32_t s_rows, int64_t head, int32_t first_row, int32_t row, int32_t end,
                                           int32_t head_dim, int lane) {
  constexpr int kStride = portable::gradient_row_bytes(HeadDim);
#pragma unroll
  for (int j = 0; j < HeadDim / 8; ++j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      ptx::store_words(s_rows + (lane / 4 + r * 8) * kStride + (j * 8 + lane % 4 * 2) * 4,
                       __float_as_uint(factor * sums[j][r * 2]), __float_as_uint(factor * sums[j][r * 2 + 1]));
    }
  }
  __syncwarp();
  store_gradient_rows<E, HeadDim, kWarpRows, kStride>(to, s_rows, head, first_row, row, end, head_dim, lane);
  __syncwarp();
}

}  // namespace tessella::device
