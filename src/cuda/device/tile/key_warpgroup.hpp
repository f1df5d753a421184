// A warpgroup of backward_sm90 with 64 keys: what the kernels with a key tile of their own share.
#pragma once

#include "cuda/device/ptx/wgmma.hpp"
#include "cuda/device/schedule/key_block_sm90.hpp"
#include "cuda/device/score/gradient_operands.hpp"
#include "cuda/device/tile/gradient.hpp"
#include "cuda/device/tile/operand.hpp"
#include "cuda/device/tile/tile.hpp"

namespace tessella::device {

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

// Starts S^T or dP^T: 64 rows of K or V times the tile's q or d_out, summed over the head dim. Both are in panels, of
// `rows` and Queries rows.
template <Element E, int HeadDim, int Queries>
__device__ __forceinline__ void begin_scores(float (&s)[Queries / 8][4], uint32_t s_keys, int rows,
                                             uint32_t s_queries) {
  const Operand keys(s_keys), queries(s_queries);
  ptx::fence_registers();
#pragma unroll
  for (int step = 0; step < HeadDim / 16; ++step) {
    const int panel = step / 4 * kPanelRowBytes, inside = step % 4 * 32;
    ptx::WarpgroupMma<E, Queries>::with_shared(s, keys.at(panel * rows + inside), queries.at(panel * Queries + inside),
                                               step > 0);
  }
  ptx::commit_products();
}

// Starts sums += left rows, summed over 16 Steps rows of a tile in panels.
template <Element E, int HeadDim, int Steps>
__device__ __forceinline__ void begin_sums(float (&sums)[HeadDim / 8][4], const uint32_t (&left)[Steps][4],
                                           uint32_t s_rows) {
  const Operand rows(s_rows, Steps * 16 * kPanelRowBytes);
  ptx::fence_registers();
#pragma unroll
  for (int step = 0; step < Steps; ++step) {
    ptx::WarpgroupMma<E, HeadDim>::template with_registers<ptx::Contiguous::columns>(
        sums, left[step], rows.at(step * 16 * kPanelRowBytes), true);
  }
  ptx::commit_products();
}

// True of a query that sees a key.
__device__ __forceinline__ bool is_active(uint32_t s_rows, int query) {
  return load_backward_row(s_rows + query * 16).end > 0;
}

template <class BlockType>
struct KeyWarpgroup {
  using Block = BlockType;
  static constexpr BackwardSm90Config C = Block::kConfig;
  static constexpr Element kElement = C.score.element;
  static constexpr int kTileQ = Block::kTileQ, kTileKv = Block::kTileKv, kRowBytes = Block::kRowBytes;
  static constexpr int kRows = 64;                 // of keys, of a warpgroup
  static constexpr int kQueryBlocks = kTileQ / 8;  // of scores
  static constexpr int kThreads = 256;             // of both warpgroups
  static constexpr int kMeeting = 1;               // the first of the named barriers
  using Gradients = GradientOperands<C.score, kQueryBlocks>;
  using Scores = typename Gradients::Scores;
  using Left = typename Gradients::Left;

  const Block& block;
  const BackwardParams& p;
  int warpgroup, warp, lane;  // warp: of the warpgroup
  typename Block::Queries queries;

  __device__ __forceinline__ explicit KeyWarpgroup(const Block& of)
      : block(of),
        p(of.p),
        warpgroup(static_cast<int>(__shfl_sync(kAllLanes, threadIdx.x / 128, 0)) - 1),
        warp(static_cast<int>(threadIdx.x / 32 % 4)),
        lane(static_cast<int>(threadIdx.x % 32)),
        queries(of.query_barriers()) {}

  // The warpgroup's first row of the key tile.
  __device__ int first_row() const { return kTileKv > kRows ? warpgroup * kRows : 0; }
  // Returns when both warpgroups are here.
  __device__ __forceinline__ static void meet() { ptx::named_wait(kMeeting, kThreads); }
  template <class Ring>
  __device__ __forceinline__ static void release(const Ring& ring) {
    __syncwarp();
    if (ptx::elect()) ring.arrive_empty();
  }

  __device__ __forceinline__ Gradients gradients(const QueryVisit& visit) const {
    return {{p, block.sequence, block.batch_idx, visit.head_idx, visit.tile * kTileQ,
             block.first_key + first_row() + warp * 16, block.s_rows(queries), visit.has_elements, lane}};
  }

  // Stores factor * sums as rows of a gradient, by way of shared memory, where K, V and the queries were.
  template <int HeadDim>
  __device__ __forceinline__ void store(const GradientParams& to, const float (&sums)[HeadDim / 8][4], float factor,
                                        int32_t head_dim) const {
    if (to.tensor.data == nullptr) return;
    constexpr int kWarpRows = 16, kStride = portable::gradient_row_bytes(HeadDim);
    constexpr int kWarpBytes =
        kWarpRows * portable::gradient_row_bytes(C.head_dim_qk > C.head_dim_v ? C.head_dim_qk : C.head_dim_v);
    static_assert(8 * kWarpBytes <= Block::kLayout.scores_at);
    const uint32_t s_rows = block.s_k() + (warpgroup * 4 + warp) * kWarpBytes;
#pragma unroll
    for (int j = 0; j < HeadDim / 8; ++j) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        ptx::store_words(s_rows + (lane / 4 + r * 8) * kStride + (j * 8 + lane % 4 * 2) * 4,
                         __float_as_uint(factor * sums[j][r * 2]), __float_as_uint(factor * sums[j][r * 2 + 1]));
      }
    }
    __syncwarp();
    const auto [batch_idx, head_kv, first, rows] = block.key_rows();
    store_gradient_rows<kElement, HeadDim, kWarpRows, kStride>(
        to, s_rows, batch_idx * to.tensor.batch_stride + head_kv * to.tensor.head_stride, first,
        first_row() + warp * kWarpRows, rows, head_dim, lane);
    __syncwarp();
  }
};

}  // namespace tessella::device
