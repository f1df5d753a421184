// A warpgroup of backward_sm90 with 64 keys: what the kernels with a key tile of their own share.
#pragma once

#include "cuda/kernels/backward_sm90/gradient_operands.cuh"
#include "cuda/kernels/backward_sm90/key_block_sm90.cuh"
#include "cuda/kernels/backward_sm90/panel_products.cuh"

namespace tessella::device {

// True of a query that sees a key.
__device__ __forceinline__ bool is_active(uint32_t s_rows, int query) {
  return load_backward_row(s_rows + query * 16).end > 0;
}

template <class BlockType>
struct KeyWarpgroup {
  using Block = BlockType;
  static constexpr BackwardSm90Config C = Block::kConfig;
  static_assert(portable::are_one(C.score.elements));
  static constexpr Element kElement = C.score.elements.q;
  static constexpr int kTileQ = Block::kTileQ, kTileKv = Block::kTileKv, kRowBytes = Block::kRowBytes;
  static constexpr int kRows = 64;                 // of keys, of a warpgroup
  static constexpr int kQueryBlocks = kTileQ / 8;  // of scores
  static constexpr int kThreads = 256;             // of both warpgroups
  static constexpr int kMeeting = 1;               // a named barrier
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

  __device__ __forceinline__ Gradients gradients(const QueryVisit& visit) const {
    return {{p, block.sequence, block.batch_idx, visit.head_idx, visit.tile * kTileQ,
             block.first_key + first_row() + warp * 16, block.s_rows(queries), visit.has_elements, lane}};
  }

  // Stores factor * sums as rows of a gradient, by way of shared memory, where K, V and the queries were.
  template <int HeadDim>
  __device__ __forceinline__ void store(const GradientParams& to, const float (&sums)[HeadDim / 8][4], float factor,
                                        int32_t head_dim) const {
    if (to.tensor.data == nullptr) return;
    constexpr int kWidest = C.head_dim_qk > C.head_dim_v ? C.head_dim_qk : C.head_dim_v;
    constexpr int kWarpBytes = kWarpRows * portable::gradient_row_bytes(kWidest);
    static_assert(8 * kWarpBytes <= Block::kLayout.scores_at);
    const auto [batch_idx, head_kv, first, rows] = block.key_rows();
    store_sums<kElement, HeadDim>(to, sums, factor, block.s_k() + (warpgroup * 4 + warp) * kWarpBytes,
                                  batch_idx * to.tensor.batch_stride + head_kv * to.tensor.head_stride, first,
                                  first_row() + warp * kWarpRows, rows, head_dim, lane);
  }
};

}  // namespace tessella::device
