// FlashAttention-3's backward (arXiv 2407.08608, algorithm 3) with Hopper's copy engine and warpgroup matrix
// instructions: bf16 and f16, head dims to 128.
//
// A block owns 128 keys of a KV head, whose K and V stay in shared memory, and takes one query tile of 64 rows after
// another, of all query heads of the group:
//
//   warp 0            loads k, v once; q, d_out and the tile's rows     ring of query tiles
//   warps 1, 2        add dq to its sums in memory, in the order of key tiles
//   each warpgroup    64 keys; s^T = k q^T of the tile is there:
//     begin dp^T = v d_out^T; p = e^(s - lse)                           transposed as the scores are
//     begin dv += p^T d_out; ds = p (dp - delta)                        p from registers
//     begin dk += ds^T q                                                ds from registers
//     ds to shared memory, where both warpgroups meet
//     begin dq = ds k, half of its columns each
//     begin s^T of the next tile; dq to shared memory                   ring of dq
//   dk, dv to memory
//
// The steps before it, and gradients of one number a head, are those of backward_sm80 (backward_rows.cuh). dQ's sums
// are stored in the layout of the accumulators of eight warps.
#pragma once

#include "cuda/kernels/backward_sm80/backward_rows.cuh"
#include "cuda/kernels/backward_sm90/block_backward_sm90.cuh"
#include "cuda/kernels/backward_sm90/key_warpgroup.cuh"

namespace tessella::device {

// A warpgroup that multiplies.
template <BackwardSm90Config C>
struct WarpgroupBackwardSm90 : KeyWarpgroup<BlockBackwardSm90<C>> {
  using Base = KeyWarpgroup<BlockBackwardSm90<C>>;
  using Base::block, Base::p, Base::warpgroup, Base::warp, Base::lane, Base::queries;
  using Base::kElement, Base::kTileQ, Base::kTileKv, Base::kRowBytes, Base::kRows, Base::kThreads;
  using Base::meet, Base::gradients, Base::store_dk, Base::store_dv;
  using typename Base::Block, typename Base::Gradients, typename Base::Scores, typename Base::Left;
  static constexpr int kHeadDim = C.head_dim_qk, kHeadSteps = kHeadDim / 16;
  static_assert(!C.apart && C.head_dim_v == kHeadDim && kHeadDim <= 128);
  static constexpr int kColumnsDQ = kHeadDim / 2;  // of a warpgroup
  static constexpr int kPanelK = kTileKv * kRowBytes, kPanelQ = kTileQ * kRowBytes;
  // Narrow heads leave registers for the warpgroup's keys and values, as left operands: shared memory is the
  // bottleneck.
  static constexpr bool kHoldsKeys = kHeadDim <= 64;
  using Keys = uint32_t[kHoldsKeys ? kHeadSteps : 1][4];

  Keys keys, values;
  typename Block::Sums sums;
  float dk[kHeadDim / 8][4], dv[kHeadDim / 8][4];

  __device__ __forceinline__ explicit WarpgroupBackwardSm90(const Block& of) : Base(of), sums(of.sum_barriers()) {
    clear(dk);
    clear(dv);
  }

  // Keys that no query sees become zeros: dQ sums over keys.
  __device__ __forceinline__ void clear_unseen_keys() const {
    const uint4 seen = ptx::load_chunk(block.s_seen());
    if ((seen.x & seen.y & seen.z & seen.w) == ~0u) return;
    const uint32_t s_seen = block.s_seen();
    clear_rows<kTileKv, kHeadDim, 128, kThreads>(
        [&](int row) { return (ptx::load_word(s_seen + row / 32 * 4) >> row % 32 & 1) != 0; }, block.s_k());
    ptx::fence_async();
    meet();
  }

  __device__ __forceinline__ void load_keys(Keys& to, uint32_t s_keys) const {
    using Panel = Tile<kTileKv, 64, 2>;
    const uint32_t s_row = s_keys + Panel::offset(warpgroup * kRows + warp * 16 + lane % 16, lane / 16);
#pragma unroll
    for (int step = 0; step < kHeadSteps; ++step) ptx::load_matrices(to[step], Panel::advance(s_row, 0, step * 2));
  }
  // Starts S^T or dP^T, of K and q or V and d_out. held: the keys with kHoldsKeys.
  __device__ __forceinline__ void begin_products(Scores& s, const Keys& held, uint32_t s_keys,
                                                 uint32_t s_queries) const {
    if constexpr (kHoldsKeys) {
      const Operand<> of_queries(s_queries);
      ptx::fence_registers();
#pragma unroll
      for (int step = 0; step < kHeadSteps; ++step) {
        ptx::WarpgroupMma<kElement, kTileQ>::template with_registers<ptx::Contiguous::summed>(
            s[0], held[step], of_queries.at(step * 32), step > 0);
      }
      ptx::commit_products();
    } else {
      begin_scores<kElement, kHeadDim, kTileQ>(s[0], s_keys + warpgroup * kRows * kRowBytes, kTileKv, s_queries);
    }
  }
  // Starts the warpgroup's columns of dS K.
  __device__ __forceinline__ void begin_dq(float (&dq)[kColumnsDQ / 8][4], uint32_t s_d_scores) const {
    using Mma = ptx::WarpgroupMma<kElement, kColumnsDQ>;
    const int column = warpgroup * kColumnsDQ;
    const Operand<> d_scores(s_d_scores), keys(block.s_k() + column / 64 * kPanelK + column % 64 * 2, kPanelK);
    ptx::fence_registers();
#pragma unroll
    for (int step = 0; step < kTileKv / 16; ++step) {
      Mma::template with_shared<ptx::Contiguous::columns>(dq, d_scores.at(step / 4 * kPanelQ + step % 4 * 32),
                                                          keys.at(step * 16 * kRowBytes), step > 0);
    }
    ptx::commit_products();
  }

  // Stores dS^T to the warpgroup's 64 columns of dS.
  __device__ __forceinline__ void store_d_scores(const Left& d_scores, uint32_t s_d_scores) const {
    using Panel = Tile<kTileQ, 64, 2>;
    const uint32_t to =
        s_d_scores + warpgroup * kPanelQ + Panel::offset(lane / 16 * 8 + lane % 8, warp * 2 + lane / 8 % 2);
#pragma unroll
    for (int step = 0; step < kTileQ / 16; ++step) {
      ptx::store_matrices_transposed(Panel::advance(to, step * 16, 0), d_scores[step]);
    }
    ptx::fence_async();
  }

  // Leaves the warpgroup's columns of dQ to the warps that add it.
  __device__ __forceinline__ void pass_dq(const float (&dq)[kColumnsDQ / 8][4]) {
    const int thread = (warp * 2 + warpgroup) * 32 + lane;  // of eight warps, two side by side
    pass<kThreads>(sums, block.s_dq(sums) + thread * 16, dq);
  }

  __device__ __forceinline__ QueryVisit take_queries() const {
    return Base::take_queries([&] {
      Base::template clear_idle_queries<kHeadDim, 128, kThreads>(block.s_q(queries), block.s_d_out(queries));
    });
  }

  __device__ __forceinline__ void run() {
    typename Block::Keys(block.key_barriers()).wait_full();
    clear_unseen_keys();
    if constexpr (kHoldsKeys) {
      load_keys(keys, block.s_k());
      load_keys(values, block.s_v());
    }
    QueryVisit visit = take_queries();
    if (visit.is_there()) multiply(visit);
    meet();
    store_dk(dk);
    store_dv(dv);
  }
  // All query tiles from `visit` on.
  __device__ __forceinline__ void multiply(QueryVisit visit) {
    Scores products;
    begin_products(products, keys, block.s_k(), block.s_q(queries));
    ptx::wait_products<0>(products[0]);
#pragma unroll 1
    for (int buffer = 0; visit.is_there(); buffer ^= 1) {
      Scores d_probs;
      Left probs, d_scores;
      uint32_t visible = ~0u;
      if (Gradients::kIsPlain && !visit.is_full) visible = gradients(visit).find_visible();
      begin_products(d_probs, values, block.s_v(), block.s_d_out(queries));
      if constexpr (Gradients::kIsPlain) gradients(visit).find_probs(visible, products, probs);
      ptx::wait_products<0>(d_probs[0]);
      if constexpr (!Gradients::kIsPlain) {
        gradients(visit).find_both(visit.is_full, products, d_probs, probs, d_scores);
      }
      begin_sums<kElement, kHeadDim>(dv, probs, block.s_d_out(queries));
      if constexpr (Gradients::kIsPlain) gradients(visit).find_d_scores(visible, products, d_probs, d_scores);
      begin_sums<kElement, kHeadDim>(dk, d_scores, block.s_q(queries));
      store_d_scores(d_scores, block.s_d_scores(buffer));
      meet();
      float dq[kColumnsDQ / 8][4];
      begin_dq(dq, block.s_d_scores(buffer));
      ptx::wait_products<1>(dv);
      ptx::wait_products<1>(dk);
      release(queries);
      queries.advance();
      visit = take_queries();
      // Behind the last query tile the slot holds an old one, whose scores nobody reads.
      begin_products(products, keys, block.s_k(), block.s_q(queries));
      ptx::wait_products<1>(dq);
      pass_dq(dq);
      ptx::wait_products<0>(products[0]);
    }
  }
};

// Writes dQ of a query tile: scale times its sums, which are stored in the layout of the accumulators of eight warps,
// two side by side, or 0 if no key was seen.
template <BackwardSm90Config C>
__global__ void __launch_bounds__(256) store_dq_sm90(const __grid_constant__ BackwardParams p) {
  using Block = BlockBackwardSm90<C>;
  constexpr int kHeadDim = C.head_dim_qk;
  const RowTile at(p);
  if (at.batch_idx == p.sequences.batch) return;
  const BandedSequence<int64_t> s = sequence(p.sequences, p.masks, at.batch_idx);
  const int32_t first = at.tile * Block::kTileQ;
  if (first >= s.len_q) return;
  const int64_t tile = typename Block::Head(p, s, at.batch_idx, at.head_idx).first + at.tile;
  const auto thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const bool has_sums = (p.turns[tile] & portable::kHasSums) != 0;
  const float* from = p.dq_sums + tile * (Block::kTileQ * kHeadDim) + thread * 4;
  constexpr int kStride = portable::gradient_row_bytes(kHeadDim);
  const uint32_t s_rows = ptx::shared_address(ptx::dynamic_shared());
#pragma unroll
  for (int j = 0; j < kHeadDim / 16; ++j) {
    float dq[4] = {};
    if (has_sums) load_piece<Element::f32>(from, j * 1024, dq);
    const int row = warp / 2 * 16 + lane / 4, column = warp % 2 * (kHeadDim / 2) + j * 8 + lane % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      ptx::store_words(s_rows + (row + r * 8) * kStride + column * 4, __float_as_uint(p.scores.scale * dq[r * 2]),
                       __float_as_uint(p.scores.scale * dq[r * 2 + 1]));
    }
  }
  __syncthreads();
  store_gradient_rows<C.score.elements.q, kHeadDim, 8, kStride>(
      p.dq, s_rows + warp * 8 * kStride,
      at.batch_idx * p.dq.tensor.batch_stride + at.head_idx * p.dq.tensor.head_stride, s.row_q, first + warp * 8,
      s.len_q, p.inputs.head_dim_qk, lane);
}

template <BackwardSm90Config C>
__global__ void __launch_bounds__(portable::kBackwardSm90Threads, 1)
    backward_sm90(const __grid_constant__ BackwardSm90Params p) {
  using Block = BlockBackwardSm90<C>;
  Block block(p, ptx::shared_address(ptx::dynamic_shared()));
  if (!take_key_tile(block)) return;
  if (threadIdx.x < 128) {
    ptx::give_registers<Block::kRegisters.load>();
    const int warp = static_cast<int>(threadIdx.x / 32);
    if (warp == 0) {
      block.load(portable::kBackwardAdders);
    } else if (warp <= portable::kBackwardAdders) {
      const bool wants_dq = p.backward.dq.tensor.data != nullptr;
      const bool takes_turns = wants_dq && sequences_are_apart(p.backward);
      if (threadIdx.x % 32 == 0) block.add_dq(warp - 1, wants_dq, takes_turns);
    }
  } else {
    ptx::take_registers<Block::kRegisters.multiply>();
    WarpgroupBackwardSm90<C> warpgroup(block);
    warpgroup.run();
  }
}

}  // namespace tessella::device
