// A warpgroup of backward_sm90 with 64 keys: what the kernels with a key tile of their own share.
#pragma once

#include "cuda/kernels/backward_sm90/gradient_operands.cuh"
#include "cuda/kernels/backward_sm90/key_block_sm90.cuh"
#include "cuda/kernels/backward_sm90/panel_products.cuh"

namespace tessella::device {

// True of a query that sees a key.
__device__ __forceinline__ bool is_active(uint32_t s_rows, int query) { return load_row_keys(s_rows, query).end > 0; }

template <class BlockType>
struct KeyWarpgroup : MultiplyingWarpgroup<BlockType> {
  using Base = MultiplyingWarpgroup<BlockType>;
  using Base::block, Base::p, Base::warpgroup, Base::warp, Base::lane;
  using Base::C, Base::kElement, Base::kTileQ, Base::kTileKv, Base::meet;
  using typename Base::Block;
  static constexpr int kRowBytes = Block::kRowBytes;
  static constexpr int kRows = 64;                 // of keys, of a warpgroup
  static constexpr int kQueryBlocks = kTileQ / 8;  // of scores
  using Gradients = GradientOperands<C.score, kQueryBlocks>;
  using Scores = typename Gradients::Scores;
  using Left = typename Gradients::Left;

  typename Block::Queries queries;

  __device__ __forceinline__ explicit KeyWarpgroup(const Block& of) : Base(of), queries(of.query_barriers()) {}

  // The warpgroup's first row of the key tile.
  __device__ int first_row() const { return kTileKv > kRows ? warpgroup * kRows : 0; }

  __device__ __forceinline__ Gradients gradients(const QueryVisit& visit) const {
    return {{p, block.sequence, block.batch_idx, visit.head_idx, visit.tile * kTileQ,
             block.first_key + first_row() + warp * 16, block.s_rows(queries), visit.has_elements, lane}};
  }

  // Waits for the next query tile, and clears rows of queries that see no key: dK and dV sum over queries.
  template <class ClearIdle>
  __device__ __forceinline__ QueryVisit take_queries(const ClearIdle& clear_idle) const {
    queries.wait_full();
    const QueryVisit visit = block.visit(queries);
    if (visit.is_there() && visit.has_idle) clear_idle();
    return visit;
  }
  // Of tiles of HeadDim columns, by the Threads threads from First on.
  template <int HeadDim, int First, int Threads, class... Tiles>
  __device__ __forceinline__ void clear_idle_queries(Tiles... s_tiles) const {
    const uint32_t s_rows = block.s_rows(queries);
    clear_rows<kTileQ, HeadDim, First, Threads>([&](int row) { return is_active(s_rows, row); }, s_tiles...);
    ptx::fence_async();
    meet();
  }

  __device__ __forceinline__ void store_dk(const float (&dk)[C.head_dim_qk / 8][4]) const {
    store<C.head_dim_qk>(p.dk, dk, p.scores.scale, p.inputs.head_dim_qk);
  }
  __device__ __forceinline__ void store_dv(const float (&dv)[C.head_dim_v / 8][4]) const {
    store<C.head_dim_v>(p.dv, dv, C.score.dropout ? p.scores.keep_scale : 1.0f, p.inputs.head_dim_v);
  }

 private:
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
