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
// The steps before it, and gradients of one number a head, are those of backward_sm80 (backward_rows.hpp). dQ's sums
// are stored in the layout of the accumulators of eight warps.
#pragma once

#include "cuda/device/backward_rows.hpp"
#include "cuda/device/ptx/wgmma.hpp"
#include "cuda/device/schedule/block_backward_sm90.hpp"
#include "cuda/device/score/gradient_tile.hpp"
#include "cuda/device/tile/gradient.hpp"
#include "cuda/device/tile/operand.hpp"
#include "cuda/device/tile/tile.hpp"

namespace tessella::device {

// A warpgroup that multiplies.
template <BackwardSm90Config C>
struct WarpgroupBackwardSm90 {
  using Block = BlockBackwardSm90<C>;
  static constexpr Element kElement = C.score.element;
  static constexpr int kTileQ = Block::kTileQ, kTileKv = Block::kTileKv, kRowBytes = Block::kRowBytes;
  static constexpr int kRows = 64;                   // of keys, of a warpgroup
  static constexpr int kQueryBlocks = kTileQ / 8;    // of scores
  static constexpr int kSteps = kTileQ / 16;         // of the products that sum over queries
  static constexpr int kBlocks = C.head_dim / 8;     // of dk and dv
  static constexpr int kColumnsDQ = C.head_dim / 2;  // of a warpgroup
  static constexpr int kPanelK = kTileKv * kRowBytes, kPanelQ = kTileQ * kRowBytes;
  static constexpr int kMeeting = 1, kThreads = 256;
  using Gradients = GradientTile<C.score, 1, kQueryBlocks>;
  using Scores = typename Gradients::Scores;

  const Block& block;
  const BackwardParams& p;
  int warpgroup, warp, lane;  // warp: of the warpgroup
  // Narrow heads leave registers for the warpgroup's keys and values, as left operands: shared memory is the
  // bottleneck.
  static constexpr bool kHoldsKeys = C.head_dim <= 64;
  static constexpr int kHeadSteps = C.head_dim / 16;
  using Keys = uint32_t[kHoldsKeys ? kHeadSteps : 1][4];
  Keys keys, values;
  typename Block::Queries queries;
  typename Block::Sums sums;
  float dk[1][kBlocks][4], dv[1][kBlocks][4];

  __device__ __forceinline__ explicit WarpgroupBackwardSm90(const Block& of)
      : block(of),
        p(of.p),
        warpgroup(static_cast<int>(__shfl_sync(kAllLanes, threadIdx.x / 128, 0)) - 1),
        warp(static_cast<int>(threadIdx.x / 32 % 4)),
        lane(static_cast<int>(threadIdx.x % 32)),
        queries(of.query_barriers()),
        sums(of.sum_barriers()) {
    clear(dk[0]);
    clear(dv[0]);
  }
  template <int Blocks>
  __device__ __forceinline__ static void clear(float (&d)[Blocks][4]) {
#pragma unroll
    for (int j = 0; j < Blocks; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) d[j][i] = 0;
    }
  }

  // Returns when both warpgroups are here.
  __device__ __forceinline__ static void meet() { ptx::named_wait(kMeeting, kThreads); }
  template <class Ring>
  __device__ __forceinline__ static void release(const Ring& ring) {
    __syncwarp();
    if (ptx::elect()) ring.arrive_empty();
  }

  // Writes zeros for idle rows, in tiles of panels of 64 columns: their memory may hold NaN, and 0 * NaN is NaN. Both
  // warpgroups call it.
  template <int Rows, class IsActive>
  __device__ __forceinline__ void clear_rows(uint32_t first, uint32_t second, const IsActive& is_active) const {
    for (auto i = static_cast<int>(threadIdx.x - 128); i < Rows * 8; i += kThreads) {
      if (is_active(i / 8)) continue;
#pragma unroll
      for (int panel = 0; panel < C.head_dim / 64; ++panel) {
        ptx::store_chunk(first + panel * Rows * kRowBytes + i * 16, {0, 0, 0, 0});
        ptx::store_chunk(second + panel * Rows * kRowBytes + i * 16, {0, 0, 0, 0});
      }
    }
    ptx::fence_async();
    meet();
  }
  // Writes zeros for keys that no query of the sequence sees.
  __device__ __forceinline__ void clear_unseen_keys() const {
    const KeyRange first = row_keys(block.sequence, 0), last = row_keys(block.sequence, block.sequence.len_q - 1);
    if (block.first_key >= first.begin && block.first_key + kTileKv <= last.end) return;
    const KeyRange seen = {first.begin, last.end};
    clear_rows<kTileKv>(block.s_k(), block.s_v(),
                        [&](int row) { return seen.sees(block.first_key + row, p.forward.keep_first); });
  }
  __device__ __forceinline__ void clear_idle_queries() const {
    const uint32_t s_rows = block.s_rows(queries);
    clear_rows<kTileQ>(block.s_q(queries), block.s_d_out(queries),
                       [&](int row) { return load_backward_row(s_rows + row * 16).end > 0; });
  }

  __device__ __forceinline__ void load_keys(Keys& to, uint32_t s_keys) const {
    using Panel = Tile<kTileKv, 64, 2>;
    const uint32_t s_row = s_keys + Panel::offset(warpgroup * kRows + warp * 16 + lane % 16, lane / 16);
#pragma unroll
    for (int step = 0; step < kHeadSteps; ++step) ptx::load_matrices(to[step], Panel::advance(s_row, 0, step * 2));
  }
  // Starts S^T or dP^T: 64 keys times 64 queries, K or V times the tile's q or d_out, summed over the head dim. held:
  // the keys with kHoldsKeys.
  __device__ __forceinline__ void begin_scores(float (&s)[kQueryBlocks][4], const Keys& held, uint32_t s_keys,
                                               uint32_t s_queries) const {
    using Mma = ptx::WarpgroupMma<kElement, kTileQ>;
    const Operand of_keys(s_keys + warpgroup * kRows * kRowBytes), of_queries(s_queries);
    ptx::fence_registers();
#pragma unroll
    for (int step = 0; step < kHeadSteps; ++step) {
      const uint64_t right = of_queries.at(step / 4 * kPanelQ + step % 4 * 32);
      if constexpr (kHoldsKeys) {
        Mma::template with_registers<ptx::Contiguous::summed>(s, held[step], right, step > 0);
      } else {
        Mma::with_shared(s, of_keys.at(step / 4 * kPanelK + step % 4 * 32), right, step > 0);
      }
    }
    ptx::commit_products();
  }
  // Starts sums += left^T rows, summed over the tile's queries.
  __device__ __forceinline__ void begin_sums(float (&sums)[kBlocks][4], const uint32_t (&left)[kSteps][4],
                                             uint32_t s_rows) const {
    using Mma = ptx::WarpgroupMma<kElement, C.head_dim>;
    const Operand rows(s_rows, kPanelQ);
    ptx::fence_registers();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      Mma::template with_registers<ptx::Contiguous::columns>(sums, left[step], rows.at(step * 16 * kRowBytes), true);
    }
    ptx::commit_products();
  }
  // Starts the warpgroup's columns of dS K.
  __device__ __forceinline__ void begin_dq(float (&dq)[kColumnsDQ / 8][4], uint32_t s_d_scores) const {
    using Mma = ptx::WarpgroupMma<kElement, kColumnsDQ>;
    const int column = warpgroup * kColumnsDQ;
    const Operand d_scores(s_d_scores), keys(block.s_k() + column / 64 * kPanelK + column % 64 * 2, kPanelK);
    ptx::fence_registers();
#pragma unroll
    for (int step = 0; step < kTileKv / 16; ++step) {
      Mma::template with_shared<ptx::Contiguous::columns>(dq, d_scores.at(step / 4 * kPanelQ + step % 4 * 32),
                                                          keys.at(step * 16 * kRowBytes), step > 0);
    }
    ptx::commit_products();
  }

  __device__ __forceinline__ Gradients gradients(const QueryVisit& visit) const {
    return {p,
            block.sequence,
            block.batch_idx,
            visit.head_idx,
            visit.tile * kTileQ,
            block.first_key + warpgroup * kRows + warp * 16,
            block.s_rows(queries),
            visit.has_elements,
            lane};
  }
  // Computes P^T in place of the products, which have q's sign, and as a left operand.
  __device__ __forceinline__ void find_probs(const QueryVisit& visit, Scores& products,
                                             uint32_t (&probs)[kSteps][4]) const {
    const float scale = copysignf(Score<C.score>(p.forward, block.sequence, 0, 0).scale(), p.forward.scale);
    if (visit.is_full) {
      gradients(visit).template exponentiate<false>(products, scale);
    } else {
      gradients(visit).template exponentiate<true>(products, scale);
    }
    pack(products[0], probs);
  }
  // Computes dS^T in place of dP^T, and as a left operand.
  __device__ __forceinline__ void find_d_scores(const QueryVisit& visit, const Scores& probs, Scores& d_probs,
                                                uint32_t (&d_scores)[kSteps][4]) const {
    if (visit.is_full) {
      gradients(visit).template multiply<false>(probs, d_probs);
    } else {
      gradients(visit).template multiply<true>(probs, d_probs);
    }
    pack(d_probs[0], d_scores);
  }
  // Both at once, of scores with features.
  __device__ __forceinline__ void find_both(const QueryVisit& visit, Scores& products, const Scores& d_probs,
                                            uint32_t (&probs)[kSteps][4], uint32_t (&d_scores)[kSteps][4]) const {
    if (p.forward.scale < 0) {
#pragma unroll
      for (int j = 0; j < kQueryBlocks; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) products[0][j][i] = -products[0][j][i];
      }
    }
    const typename Gradients::Gradient gradient(p, block.sequence, block.batch_idx, visit.head_idx);
    const auto use = [&](int, int j, int r, const ScoreGradients& first, const ScoreGradients& second, const auto&) {
      probs[j / 2][j % 2 * 2 + r] = Multiply<kElement>::pack(first.prob, second.prob);
      d_scores[j / 2][j % 2 * 2 + r] = Multiply<kElement>::pack(first.d_product, second.d_product);
    };
    if (visit.is_full) {
      gradients(visit).template for_each_pair<false>(products, d_probs, gradient, use);
    } else {
      gradients(visit).template for_each_pair<true>(products, d_probs, gradient, use);
    }
  }
  __device__ __forceinline__ static void pack(const float (&scores)[kQueryBlocks][4], uint32_t (&left)[kSteps][4]) {
#pragma unroll
    for (int j = 0; j < kQueryBlocks; ++j) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        left[j / 2][j % 2 * 2 + r] = Multiply<kElement>::pack(scores[j][r * 2], scores[j][r * 2 + 1]);
      }
    }
  }
  // Stores dS^T to the warpgroup's 64 columns of dS.
  __device__ __forceinline__ void store_d_scores(const uint32_t (&d_scores)[kSteps][4], uint32_t s_d_scores) const {
    using Panel = Tile<kTileQ, 64, 2>;
    const uint32_t to =
        s_d_scores + warpgroup * kPanelQ + Panel::offset(lane / 16 * 8 + lane % 8, warp * 2 + lane / 8 % 2);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      ptx::store_matrices_transposed(Panel::advance(to, step * 16, 0), d_scores[step]);
    }
    ptx::fence_async();
  }

  // Leaves the warpgroup's columns of dQ to the warps that add it.
  __device__ __forceinline__ void pass_dq(const float (&dq)[kColumnsDQ / 8][4]) {
    sums.wait_empty();
    const int thread = (warp * 2 + warpgroup) * 32 + lane;  // of eight warps, two side by side
    const uint32_t to = block.s_dq(sums) + thread * 16;
#pragma unroll
    for (int j = 0; j < kColumnsDQ / 8; ++j) {
      ptx::store_chunk(to + j * kThreads * 16, {__float_as_uint(dq[j][0]), __float_as_uint(dq[j][1]),
                                                __float_as_uint(dq[j][2]), __float_as_uint(dq[j][3])});
    }
    __syncwarp();
    if (ptx::elect()) sums.arrive_full();
    sums.advance();
  }

  // Stores factor * sums as rows of a gradient, by way of shared memory, where K, V and the queries were.
  __device__ __forceinline__ void store(const GradientParams& to, const float (&sums)[1][kBlocks][4], float factor,
                                        int32_t head_dim) const {
    if (to.tensor.data == nullptr) return;
    constexpr int kWarpRows = 16, kStride = portable::gradient_row_bytes(C);
    static_assert(8 * kWarpRows * kStride <= Block::kLayout.d_scores_at);
    const uint32_t s_rows = block.s_k() + (warpgroup * 4 + warp) * kWarpRows * kStride;
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        ptx::store_words(s_rows + (lane / 4 + r * 8) * kStride + (j * 8 + lane % 4 * 2) * 4,
                         __float_as_uint(factor * sums[0][j][r * 2]), __float_as_uint(factor * sums[0][j][r * 2 + 1]));
      }
    }
    __syncwarp();
    const auto [batch_idx, head_kv, first_row, rows] = block.key_rows();
    store_gradient_rows<kElement, C.head_dim, kWarpRows, kStride>(
        to, s_rows, batch_idx * to.tensor.batch_stride + head_kv * to.tensor.head_stride, first_row,
        warpgroup * kRows + warp * kWarpRows, rows, head_dim, lane);
    __syncwarp();
  }

  // Waits for the next query tile.
  __device__ __forceinline__ QueryVisit take_queries() const {
    queries.wait_full();
    const QueryVisit visit = block.visit(queries);
    if (visit.is_there() && visit.has_idle) clear_idle_queries();
    return visit;
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
    store(p.dk, dk, p.forward.scale, p.forward.head_dim_qk);
    store(p.dv, dv, C.score.dropout ? p.forward.keep_scale : 1.0f, p.forward.head_dim_v);
  }
  // All query tiles from `visit` on.
  __device__ __forceinline__ void multiply(QueryVisit visit) {
    Scores products;
    begin_scores(products[0], keys, block.s_k(), block.s_q(queries));
    ptx::wait_products<0>(products[0]);
#pragma unroll 1
    for (int buffer = 0; visit.is_there(); buffer ^= 1) {
      Scores d_probs;
      uint32_t probs[kSteps][4], d_scores[kSteps][4];
      begin_scores(d_probs[0], values, block.s_v(), block.s_d_out(queries));
      if constexpr (Gradients::kIsPlain) find_probs(visit, products, probs);
      ptx::wait_products<0>(d_probs[0]);
      if constexpr (!Gradients::kIsPlain) find_both(visit, products, d_probs, probs, d_scores);
      begin_sums(dv[0], probs, block.s_d_out(queries));
      if constexpr (Gradients::kIsPlain) find_d_scores(visit, products, d_probs, d_scores);
      begin_sums(dk[0], d_scores, block.s_q(queries));
      store_d_scores(d_scores, block.s_d_scores(buffer));
      meet();
      float dq[kColumnsDQ / 8][4];
      begin_dq(dq, block.s_d_scores(buffer));
      ptx::wait_products<1>(dv[0]);
      ptx::wait_products<1>(dk[0]);
      release(queries);
      queries.advance();
      visit = take_queries();
      // Behind the last query tile the slot holds an old one, whose scores nobody reads.
      begin_scores(products[0], keys, block.s_k(), block.s_q(queries));
      ptx::wait_products<1>(dq);
      pass_dq(dq);
      ptx::wait_products<0>(products[0]);
    }
  }
};

// Writes dQ of a query tile: scale times its sums, which are stored in the layout of the accumulators of eight warps,
// two side by side, or 0 if no key was seen.
template <BackwardSm90Config C>
__global__ void __launch_bounds__(256) backward_dq_sm90(const __grid_constant__ BackwardParams p) {
  using Block = BlockBackwardSm90<C>;
  const RowTile at(p);
  if (at.batch_idx == p.forward.batch) return;
  const BandedSequence<int64_t> s = sequence(p.forward, at.batch_idx);
  const int32_t first = at.tile * Block::kTileQ;
  if (first >= s.len_q) return;
  const int64_t tile = typename Block::Head(p, s, at.batch_idx, at.head_idx).first + at.tile;
  const auto thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const bool has_sums = (p.turns[tile] & portable::kHasSums) != 0;
  const float* from = p.dq_sums + tile * (Block::kTileQ * C.head_dim) + thread * 4;
  constexpr int kStride = portable::gradient_row_bytes(C);
  const uint32_t s_rows = ptx::shared_address(ptx::dynamic_shared());
#pragma unroll
  for (int j = 0; j < C.head_dim / 16; ++j) {
    float dq[4] = {};
    if (has_sums) load_piece<Element::f32>(from, j * 1024, dq);
    const int row = warp / 2 * 16 + lane / 4, column = warp % 2 * (C.head_dim / 2) + j * 8 + lane % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      ptx::store_words(s_rows + (row + r * 8) * kStride + column * 4, __float_as_uint(p.forward.scale * dq[r * 2]),
                       __float_as_uint(p.forward.scale * dq[r * 2 + 1]));
    }
  }
  __syncthreads();
  store_gradient_rows<C.score.element, C.head_dim, 8, kStride>(
      p.dq, s_rows + warp * 8 * kStride,
      at.batch_idx * p.dq.tensor.batch_stride + at.head_idx * p.dq.tensor.head_stride, s.row_q, first + warp * 8,
      s.len_q, p.forward.head_dim_qk, lane);
}

template <BackwardSm90Config C>
__global__ void __launch_bounds__(portable::kBackwardSm90Threads, 1)
    backward_sm90(const __grid_constant__ BackwardSm90Params p) {
  using Block = BlockBackwardSm90<C>;
  Block block(p, ptx::shared_address(ptx::dynamic_shared()));
  if (threadIdx.x == 0) {
    ptx::prefetch(p.q);
    ptx::prefetch(p.k);
    ptx::prefetch(p.v);
    ptx::prefetch(p.d_out);
    block.init_barriers();
  }
  block.take_ticket();
  if (block.first_key >= block.sequence.len_kv) return;
  if (threadIdx.x < 128) {
    ptx::give_registers<Block::kLoadRegisters>();
    const int warp = static_cast<int>(threadIdx.x / 32);
    if (warp == 0) {
      block.load();
    } else if (warp <= portable::kBackwardAdders) {
      const bool wants_dq = p.backward.dq.tensor.data != nullptr;
      const bool takes_turns = wants_dq && sequences_are_apart(p.backward);
      if (threadIdx.x % 32 == 0) block.add_dq(warp - 1, wants_dq, takes_turns);
    }
  } else {
    ptx::take_registers<Block::kMultiplyRegisters>();
    WarpgroupBackwardSm90<C> warpgroup(block);
    warpgroup.run();
  }
}

}  // namespace tessella::device
