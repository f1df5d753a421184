// dQ on Hopper, beside backward_dkv_sm90.cuh: FlashAttention-3's backward (arXiv 2407.08608, algorithm 3) by queries
// instead of keys. Scores are computed twice, and in return nothing is added in memory.
//
// A block owns 128 queries of a head, whose q and d_out stay in shared memory, and takes one key tile of 64 keys after
// another:
//
//   warp 0            loads q, d_out and their rows once; k and v      rings of k and v
//   each warpgroup    64 queries; s = q k^T of the tile is there:
//     begin dp = d_out v^T; p = e^(s - lse)
//     ds = p (dp - delta); begin dq += ds k                            ds from registers
//     begin s of the next tile
//   dq to memory
#pragma once

#include "cuda/kernels/backward_sm90/block_dq_sm90.cuh"
#include "cuda/kernels/backward_sm90/gradient_rows.cuh"
#include "cuda/kernels/backward_sm90/panel_products.cuh"

namespace tessella::device {

// A warpgroup that multiplies.
template <BackwardSm90Config C>
struct WarpgroupDqSm90 : MultiplyingWarpgroup<BlockDqSm90<C>> {
  using Base = MultiplyingWarpgroup<BlockDqSm90<C>>;
  using Base::block, Base::p, Base::warpgroup, Base::warp, Base::lane;
  using Base::kElement, Base::kTileQ, Base::kTileKv, Base::kThreads, Base::meet;
  using typename Base::Block;
  using Visit = typename Block::Visit;
  static constexpr int kHeadDim = C.head_dim_qk;
  using Gradients = GradientRows<C.score, kTileKv / 8>;
  using Scores = typename Gradients::Scores;

  typename Block::Keys k;
  typename Block::Values v;
  float dq[kHeadDim / 8][4];
  float slope = 0;  // the thread's part of the gradient of ALiBi's slope

  __device__ __forceinline__ explicit WarpgroupDqSm90(const Block& of)
      : Base(of), k(of.key_barriers()), v(of.value_barriers()) {
    clear(dq);
  }

  // Waits for the next key tile. Keys that no query sees become zeros: dQ sums over keys.
  __device__ __forceinline__ Visit take_keys() const {
    k.wait_full();
    const Visit visit = block.visit(k);
    if (visit.is_there() && (visit.seen[0] & visit.seen[1]) != ~0u) {
      clear_rows<kTileKv, kHeadDim, 128, kThreads>(
          [&](int row) { return ((row < 32 ? visit.seen[0] : visit.seen[1]) >> row % 32 & 1) != 0; }, block.s_k(k));
      ptx::fence_async();
      meet();
    }
    return visit;
  }
  // S of the current key tile.
  __device__ __forceinline__ void begin_products(Scores& products) const {
    begin_scores<kElement, C.head_dim_qk, kTileKv>(products, block.s_q(warpgroup), kTileQ, block.s_k(k));
  }
  // dP of it.
  __device__ __forceinline__ void begin_d_probs(Scores& d_probs) const {
    v.wait_full();
    begin_scores<kElement, C.head_dim_v, kTileKv>(d_probs, block.s_d_out(warpgroup), kTileQ, block.s_v(v));
  }
  __device__ __forceinline__ Gradients gradients(const Visit& visit) const {
    return {p,
            block.sequence,
            block.batch_idx,
            block.head_idx,
            block.first_query + warpgroup * kTileQ + warp * 16,
            visit.tile * kTileKv,
            block.s_rows(warpgroup) + warp * 16 * 16,
            (visit.flags >> 2 >> warpgroup & 1) != 0,
            lane};
  }

  __device__ __forceinline__ void run() {
    typename Block::Queries(block.query_barriers()).wait_full();
    const Visit visit = take_keys();
    if (visit.is_there()) multiply(visit);
    meet();
    if (p.dq.tensor.data != nullptr) store();
    if constexpr (C.score.alibi) {
      if (p.d_alibi_slopes.data != nullptr) store_slope();
    }
  }
  // All key tiles from `visit` on.
  __device__ __forceinline__ void multiply(Visit visit) {
    Scores products;
    begin_products(products);
    ptx::wait_products<0>(products);
#pragma unroll 1
    while (visit.is_there()) {
      const bool is_full = (visit.flags >> warpgroup & 1) != 0;
      const Gradients of = gradients(visit);
      Scores d_probs;
      typename Gradients::Left d_scores;
      uint32_t visible = ~0u;
      if (Gradients::kIsPlain && !is_full) visible = of.find_visible();
      begin_d_probs(d_probs);
      if constexpr (Gradients::kIsPlain) of.find_probs(visible, products);
      ptx::wait_products<0>(d_probs);
      release(v);
      v.advance();
      if constexpr (Gradients::kIsPlain) {
        of.find_d_scores(visible, products, d_probs, d_scores);
      } else {
        of.find_d_scores_of_products(is_full, products, d_probs, d_scores, slope);
      }
      begin_sums<kElement, kHeadDim>(dq, d_scores, block.s_k(k));
      const auto done = k;
      k.advance();
      visit = take_keys();
      // Behind the last key tile the slot holds an old one, whose scores nobody reads.
      begin_products(products);
      ptx::wait_products<1>(dq);
      release(done);
      ptx::wait_products<0>(products);
    }
  }

  // By way of shared memory, where everything else was.
  __device__ __forceinline__ void store() const {
    constexpr int kWarpBytes = kWarpRows * portable::gradient_row_bytes(kHeadDim);
    static_assert(8 * kWarpBytes <= Block::kLayout.rows_at);
    store_sums<kElement, kHeadDim>(
        p.dq, dq, p.scores.scale, block.shared + (warpgroup * 4 + warp) * kWarpBytes,
        block.batch_idx * p.dq.tensor.batch_stride + block.head_idx * p.dq.tensor.head_stride, block.sequence.row_q,
        block.first_query + warpgroup * kTileQ + warp * kWarpRows, block.sequence.len_q, p.inputs.head_dim_qk, lane);
  }
  // The block's sum for its head, added over the threads in order.
  __device__ __forceinline__ void store_slope() {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) slope += __shfl_xor_sync(kAllLanes, slope, lanes);
    static_assert(Block::kWarps * 4 <= Block::kLayout.k_slots * portable::kVisitBytes);
    const uint32_t s_sums = block.s_visits();
    if (lane == 0) ptx::store_word(s_sums + (warpgroup * 4 + warp) * 4, __float_as_uint(slope));
    meet();
    if (threadIdx.x != 128) return;
    float sum = 0;
    for (int i = 0; i < Block::kWarps; ++i) sum += __uint_as_float(ptx::load_word(s_sums + i * 4));
    const int64_t head = static_cast<int64_t>(block.batch_idx) * p.sequences.heads_q.value + block.head_idx;
    p.slope_sums[head * p.slope_tiles + block.first_query / portable::kBackwardDqTileQ] = sum;
  }
};

template <BackwardSm90Config C>
__global__ void __launch_bounds__(portable::kBackwardSm90Threads, 1)
    backward_dq_sm90(const __grid_constant__ BackwardSm90Params p) {
  using Block = BlockDqSm90<C>;
  const Block block(p, ptx::shared_address(ptx::dynamic_shared()));
  if (!block.exists()) return;
  if (threadIdx.x == 0) {
    prefetch_maps(p);
    block.init_barriers();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    ptx::give_registers<Block::kRegisters.load>();
    if (threadIdx.x < 32) block.load();
  } else {
    ptx::take_registers<Block::kRegisters.multiply>();
    WarpgroupDqSm90<C>(block).run();
  }
}

}  // namespace tessella::device
