// dK and dV on Hopper: FlashAttention-3's backward (arXiv 2407.08608, algorithm 3) without dQ, which
// backward_dq_sm90.cuh computes. For head dims above 128, where a block's registers hold dK and dV of 64 keys and no
// more, and for gradients of ALiBi's slopes, which a block of dQ sums for its head.
//
// A block owns 64 keys of a KV head, whose K and V stay in shared memory, and takes one query tile of 64 rows after
// another, of all query heads of the group. Scores are transposed:
//
//   warp 0          loads k, v once; q, d_out and the tile's rows           ring of query tiles
//   warpgroup 1     s^T = k q^T is there: pass it to the other warpgroup    ring of scores
//     p = e^(s - lse); begin dv += p^T d_out                                p from registers
//     begin s^T of the next tile
//   warpgroup 2     dp^T = v d_out^T is there, and so is s^T
//     ds = p (dp - delta); begin dk += ds^T q                               ds from registers
//     begin dp^T of the next tile
//   dk, dv to memory
#pragma once

#include "cuda/kernels/backward_sm90/key_warpgroup.cuh"

namespace tessella::device {

template <BackwardSm90Config C>
struct BlockDkvSm90 : KeyBlockSm90<C> {
  using Base = KeyBlockSm90<C>;
  using Base::Base, Base::kLayout, Base::kWarps;
  using typename Base::Keys, typename Base::Queries;
  // Scores, as the accumulators of one warpgroup.
  using Passed = Ring<1>;

  __device__ uint32_t passed_barriers() const { return Base::other_barriers(); }
  static_assert(kLayout.barriers_at + Keys::kBytes + Queries::kBytes + Passed::kBytes <= kLayout.bytes);
  __device__ uint32_t s_passed() const { return Base::shared + kLayout.scores_at; }

  __device__ __forceinline__ void init_barriers() const {
    Keys::init(Base::key_barriers(), 1, 1);
    Queries::init(Base::query_barriers(), 1, kWarps);
    Passed::init(passed_barriers(), kWarps / 2, kWarps / 2);
    ptx::publish_barriers();
  }
};

enum class Result { dv, dk };

// The warpgroup of dV or that of dK.
template <BackwardSm90Config C, Result R>
struct WarpgroupDkvSm90 : KeyWarpgroup<BlockDkvSm90<C>> {
  using Base = KeyWarpgroup<BlockDkvSm90<C>>;
  using Base::block, Base::p, Base::warp, Base::lane, Base::queries;
  using Base::kElement, Base::kTileQ, Base::kTileKv, Base::kQueryBlocks;
  using typename Base::Block, typename Base::Gradients, typename Base::Scores, typename Base::Left;
  static constexpr bool kIsDV = R == Result::dv;
  // The dims of the scores' sum and of the result.
  static constexpr int kSummed = kIsDV ? C.head_dim_qk : C.head_dim_v;
  static constexpr int kHeadDim = kIsDV ? C.head_dim_v : C.head_dim_qk;

  typename Block::Passed passed;
  float sums[kHeadDim / 8][4];

  __device__ __forceinline__ explicit WarpgroupDkvSm90(const Block& of) : Base(of), passed(of.passed_barriers()) {
    clear(sums);
  }

  // S^T or dP^T.
  __device__ __forceinline__ void begin_products(Scores& s) const {
    begin_scores<kElement, kSummed, kTileQ>(s[0], kIsDV ? block.s_k() : block.s_v(), kTileKv,
                                            kIsDV ? block.s_q(queries) : block.s_d_out(queries));
  }
  // The rows that the result sums.
  __device__ __forceinline__ uint32_t s_summed() const { return kIsDV ? block.s_d_out(queries) : block.s_q(queries); }

  __device__ __forceinline__ uint32_t s_passed() const { return block.s_passed() + (warp * 32 + lane) * 16; }
  __device__ __forceinline__ void take(Scores& s) {
    passed.wait_full();
#pragma unroll
    for (int j = 0; j < kQueryBlocks; ++j) {
      const uint4 words = ptx::load_chunk(s_passed() + j * 128 * 16);
      s[0][j][0] = __uint_as_float(words.x);
      s[0][j][1] = __uint_as_float(words.y);
      s[0][j][2] = __uint_as_float(words.z);
      s[0][j][3] = __uint_as_float(words.w);
    }
    release(passed);
    passed.advance();
  }

  // P^T or dS^T as a left operand, from S^T or dP^T. Both warpgroups find P, which costs less than to pass it.
  __device__ __forceinline__ void find_left(const QueryVisit& visit, Scores& products, Left& left) {
    const Gradients gradients = Base::gradients(visit);
    Left unused;
    if constexpr (kIsDV) pass<128>(passed, s_passed(), products[0]);
    uint32_t visible = ~0u;
    if (Gradients::kIsPlain && !visit.is_full) visible = gradients.find_visible();
    if constexpr (kIsDV) {
      if constexpr (Gradients::kIsPlain) {
        gradients.find_probs(visible, products, left);
      } else {
        gradients.find_both(visit.is_full, products, products, left, unused);
      }
    } else {
      Scores of_scores;
      take(of_scores);
      if constexpr (Gradients::kIsPlain) {
        gradients.find_probs(visible, of_scores, unused);
        gradients.find_d_scores(visible, of_scores, products, left);
      } else {
        gradients.find_both(visit.is_full, of_scores, products, unused, left);
      }
    }
  }

  // Each warpgroup clears the rows that it sums, before the other one reads them.
  __device__ __forceinline__ QueryVisit take_queries() const {
    return Base::take_queries([&] { Base::template clear_idle_queries<kHeadDim, kIsDV ? 128 : 256, 128>(s_summed()); });
  }

  __device__ __forceinline__ void run() {
    typename Block::Keys(block.key_barriers()).wait_full();
    QueryVisit visit = take_queries();
    if (visit.is_there()) multiply(visit);
    Base::meet();
    if constexpr (kIsDV) {
      Base::store_dv(sums);
    } else {
      Base::store_dk(sums);
    }
  }
  // All query tiles from `visit` on.
  __device__ __forceinline__ void multiply(QueryVisit visit) {
    Scores products;
    begin_products(products);
    ptx::wait_products<0>(products[0]);
#pragma unroll 1
    while (visit.is_there()) {
      Left left;
      find_left(visit, products, left);
      begin_sums<kElement, kHeadDim>(sums, left, s_summed());
      const auto done = queries;
      queries.advance();
      visit = take_queries();
      // Behind the last query tile the slot holds an old one, whose scores nobody reads.
      begin_products(products);
      ptx::wait_products<1>(sums);
      release(done);
      ptx::wait_products<0>(products[0]);
    }
  }
};

template <BackwardSm90Config C>
__global__ void __launch_bounds__(portable::kBackwardSm90Threads, 1)
    backward_dkv_sm90(const __grid_constant__ BackwardSm90Params p) {
  using Block = BlockDkvSm90<C>;
  Block block(p, ptx::shared_address(ptx::dynamic_shared()));
  if (!take_key_tile(block)) return;
  if (threadIdx.x < 128) {
    ptx::give_registers<Block::kRegisters.load>();
    if (threadIdx.x < 32) block.load(1);
  } else if (threadIdx.x < 256) {
    ptx::take_registers<Block::kRegisters.multiply>();
    WarpgroupDkvSm90<C, Result::dv>(block).run();
  } else {
    ptx::take_registers<Block::kRegisters.multiply>();
    WarpgroupDkvSm90<C, Result::dk>(block).run();
  }
}

}  // namespace tessella::device
