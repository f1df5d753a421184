// FlashAttention-2's backward (arXiv 2307.08691, algorithm 2) with the matrix instructions of one warp: any NVIDIA GPU
// from Ampere on, bf16, f16 and fp32.
//
//   for each tile of keys of a KV head:                              a thread block
//     dk = dv = 0                                                    registers
//     for each query head of its group, each tile of queries that sees some of them:
//       s^T = k q^T, dp^T = v do^T                                   registers
//       p = e^(s - lse), dx = p (dp - delta) cap'(s)                 registers, then shared memory
//       dv += p^T do, dk += dx^T q
//       dq of the tile += dx k                                       in memory, in the order of key tiles
//
// dQ's sums are stored in the layout of the accumulators, so that a warp adds 128 bytes at once. With in_order a word
// for each query tile says which key tile adds next. Blocks draw a ticket when they start and add in that order, so a
// block only waits for blocks that have started.
#pragma once

#include "cuda/device/schedule/key_tickets.cuh"
#include "cuda/device/tile/gradient.cuh"
#include "cuda/kernels/backward_sm80/block_backward.cuh"

namespace tessella::device {

template <BackwardSm80Config C>
struct BackwardSm80 : BlockBackward<C> {
  using Block = BlockBackward<C>;
  using Block::Block;
  using Block::p, Block::thread, Block::lane, Block::warp, Block::sequence, Block::batch_idx, Block::head_kv,
      Block::first_key, Block::kElement, Block::kThreads;
  using typename Block::FragmentDK, typename Block::FragmentDQ, typename Block::FragmentDV, typename Block::FragmentS,
      typename Block::TileP;

  int32_t key_tile = 0;

  __device__ __forceinline__ void take_ticket() {
    const KeyTicket ticket = take_key_ticket(p, Block::s_word(0));
    batch_idx = ticket.batch_idx;
    head_kv = ticket.head_kv;
    key_tile = ticket.key_tile;
    sequence = device::sequence(p.sequences, p.masks, batch_idx);
    first_key = key_tile * C.tile_kv;
  }

  // Writes zeros into K for keys that element masks hide from every query: dQ sums over keys, and 0 * NaN is NaN.
  __device__ __forceinline__ void clear_unseen_keys() const {
    constexpr int kWords = portable::kSeenWords;
    const int32_t group = p.sequences.group.value, tiles = (sequence.len_q + C.tile_q - 1) / C.tile_q;
    uint32_t seen[kWords] = {};
    for (int32_t i = thread; i < group * tiles; i += kThreads) {
      const int32_t head_idx = head_kv * group + i / tiles, tile = i % tiles;
      const auto head = Block::head(head_idx);
      if (!head.keys(tile).sees(key_tile) || head.kind(tile, key_tile) == TileClass::hidden) continue;
      const uint32_t* words = seen_keys(p.tile_map, tile_classes(p.tile_map, batch_idx, head_idx, tile) + key_tile);
#pragma unroll
      for (int word = 0; word < kWords; ++word) seen[word] |= words[word];
    }
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      const uint32_t of_warp = __reduce_or_sync(kAllLanes, seen[word]);
      if (lane == 0) ptx::store_word(Block::s_word(warp * kWords + word), of_warp);
    }
    __syncthreads();
    for (int key = warp; key < C.tile_kv; key += C.num_warps) {
      uint32_t is_seen = 0;
      for (int of = 0; of < C.num_warps; ++of) {
        is_seen |= ptx::load_word(Block::s_word(of * kWords + key / 32)) >> key % 32 & 1;
      }
      if (is_seen == 0) Block::template clear_row<typename Block::TileK>(Block::s_k(), key);
    }
  }

  // Stores P^T and dX^T to shared memory, as their products read them.
  template <bool IsMasked>
  __device__ __forceinline__ void store_gradients(const typename FragmentS::Accumulators& products,
                                                  const typename FragmentS::Accumulators& d_probs,
                                                  const QueryVisit& visit, int stage, float& slope) const {
    const typename Block::Gradient gradient(p, sequence, batch_idx, visit.head_idx);
    const int row = FragmentS::row(warp) + lane / 4, column = FragmentS::column(warp) + lane % 4 * 2;
    Block::template gradients<IsMasked>(
        products, d_probs, gradient, visit.head_idx, visit.tile, visit.has_elements, stage,
        [&](int m, int j, int r, const ScoreGradients& first, const ScoreGradients& second, const auto& origin) {
          const int key = row + m * 16 + r * 8, query = column + j * 8;
          store_pair(Block::s_probs(), key, query, first.prob, second.prob);
          store_pair(Block::s_d_products(), key, query, first.d_product, second.d_product);
          if constexpr (C.score.alibi) {
            slope -= first.d_unmodified * gradient.distance(origin, j * 8, m * 16 + r * 8);
            slope -= second.d_unmodified * gradient.distance(origin, j * 8 + 1, m * 16 + r * 8);
          }
        });
  }
  __device__ __forceinline__ static void store_pair(uint32_t tile, int key, int query, float first, float second) {
    constexpr int kOfChunk = TileP::kChunkElements;
    const uint32_t at = tile + TileP::offset(key, query / kOfChunk) + query % kOfChunk * Block::kElementBytes;
    if constexpr (kElement == Element::f32) {
      ptx::store_words(at, __float_as_uint(first), __float_as_uint(second));
    } else {
      ptx::store_word(at, Multiply<kElement>::pack(first, second));
    }
  }

  // Waits until the key tiles before this one have added to the tile's dQ. One thread waits for the whole block, which
  // reads in word 0 whether any of them has added.
  __device__ __forceinline__ void wait_for_turn(const QueryVisit& visit) const {
    const uint32_t now = ptx::acquire(turn(visit), ~portable::kHasSums, static_cast<uint32_t>(key_tile));
    ptx::store_word(Block::s_word(0), now & portable::kHasSums);
  }
  // Call it after a barrier that follows the block's additions.
  __device__ __forceinline__ void end_turn(const QueryVisit& visit) const {
    if (!visit.is_there()) return;
    ptx::fence_memory();
    ptx::store_to_memory(turn(visit), static_cast<uint32_t>(visit.next_key_tile) | portable::kHasSums);
  }
  __device__ uint32_t* turn(const QueryVisit& visit) const {
    return p.turns + Block::head(visit.head_idx).first + visit.tile;
  }

  // Adds dX K to the tile's dQ.
  __device__ __forceinline__ void add_dq(const QueryVisit& visit, bool is_first) const {
    typename FragmentDQ::Accumulators dq;
    clear(dq);
    multiply_shared<kElement, C.tile_kv, TileP, true, typename Block::TileK>(
        dq, Block::s_d_products(), FragmentDQ::row(warp), Block::s_k(), FragmentDQ::column(warp), lane);
    float* to = p.dq_sums + (Block::head(visit.head_idx).first + visit.tile) * (C.tile_q * C.head_dim_qk) + thread;
#pragma unroll
    for (int m = 0; m < FragmentDQ::kMBlocks; ++m) {
#pragma unroll
      for (int j = 0; j < FragmentDQ::kBlocks; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float* at = to + ((m * FragmentDQ::kBlocks + j) * 4 + i) * FragmentDQ::kThreads;
          if (is_first) {
            ptx::store_to_memory(at, dq[m][j][i]);
          } else {
            ptx::add_to_memory(at, dq[m][j][i]);
          }
        }
      }
    }
  }

  // Stores the block's sum for a head's d_alibi_slopes, added over the threads in order.
  __device__ __forceinline__ void store_slope(int32_t head_idx, float slope) const {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) slope += __shfl_xor_sync(kAllLanes, slope, lanes);
    __syncthreads();
    if (lane == 0) ptx::store_word(Block::s_word(1 + warp), __float_as_uint(slope));
    __syncthreads();
    if (thread != 0) return;
    float sum = 0;
    for (int i = 0; i < C.num_warps; ++i) sum += __uint_as_float(ptx::load_word(Block::s_word(1 + i)));
    p.slope_sums[(static_cast<int64_t>(batch_idx) * p.sequences.heads_q.value + head_idx) * p.slope_tiles + key_tile] =
        sum;
  }

  __device__ __forceinline__ void store_dk_and_dv(const typename FragmentDK::Accumulators& dk,
                                                  const typename FragmentDV::Accumulators& dv) const {
    store_keys<FragmentDK>(p.dk, dk, p.scores.scale, p.inputs.head_dim_qk);
    store_keys<FragmentDV>(p.dv, dv, C.score.dropout ? p.scores.keep_scale : 1.0f, p.inputs.head_dim_v);
  }

 private:
  // Stores factor * sums as rows of a gradient of keys.
  template <class Fragment>
  __device__ __forceinline__ void store_keys(const portable::GradientParams& to,
                                             const typename Fragment::Accumulators& sums, float factor,
                                             int32_t head_dim) const {
    if (to.tensor.data == nullptr || !Fragment::has(warp)) return;
    const int64_t head = batch_idx * to.tensor.batch_stride + head_kv * to.tensor.head_stride;
    device::store_gradients<kElement>(
        to, sums, factor, first_key + Fragment::row(warp), sequence.len_kv, Fragment::column(warp), head_dim, lane,
        [&](int32_t key) { return head + (sequence.row_kv + key) * to.tensor.row_stride; });
  }
};

template <BackwardSm80Config C>
__global__ void __launch_bounds__(C.num_warps * 32) backward_sm80(const __grid_constant__ BackwardParams p) {
  using Block = BackwardSm80<C>;
  using Visited = typename Block::Visited;
  Block block(p, ptx::shared_address(ptx::dynamic_shared()));
  block.take_ticket();
  if (block.first_key >= block.sequence.len_kv) return;
  const int32_t group = p.sequences.group.value, first_head = block.head_kv * group;
  const bool wants_dq = p.dq.tensor.data != nullptr, wants_slope = p.d_alibi_slopes.data != nullptr;
  const bool in_order = C.in_order && wants_dq && sequences_are_apart(p);
  const bool takes_turns = in_order && block.thread == 0;

  typename Block::FragmentDK::Accumulators dk;
  typename Block::FragmentDV::Accumulators dv;
  clear(dk);
  clear(dv);
  block.load_keys();
  const Visited visited(p, block.sequence, block.batch_idx, block.key_tile, first_head, block.s_word(Block::kVisitsAt));
  const bool finds_visits = block.warp == C.num_warps - 1;  // the first one ends turns
  if (finds_visits) {
    visited.begin();
    visited.next(0);
  }
  __syncthreads();
  const auto load = [&](int slot, int stage) {
    const QueryVisit visit = visited.visit(slot);
    if (visit.is_there()) block.load_queries(visit.head_idx, visit.tile, stage);
    ptx::commit_copies();
  };
  load(0, 0);
  if (finds_visits) visited.next(1);
  ptx::wait_copies<0>();
  __syncthreads();
  block.prepare_keys();
  if constexpr (Block::kHasMap) block.clear_unseen_keys();

  int stage = 0;
  float slope = 0;
  int32_t head_of_slope = first_head;
  int slot = 0;
  const auto after = [&](int steps) { return (slot + steps) % Visited::kSlots; };
  for (; visited.visit(slot).is_there(); slot = after(1)) {
    ptx::wait_copies<0>();
    __syncthreads();  // q and d_out have landed for every thread, and all are done with the last tile
    block.find_thread();
    const QueryVisit last = visited.visit(after(Visited::kSlots - 1));
    if (takes_turns) block.end_turn(last);
    if constexpr (C.stages > 1) load(after(1), 1 - stage);
    if (finds_visits) visited.next(after(2));
    const QueryVisit visit = visited.visit(slot);
    if (visit.has_idle) block.clear_idle_queries(stage);
    if constexpr (C.score.alibi) {
      for (; wants_slope && head_of_slope < visit.head_idx; ++head_of_slope) {
        block.store_slope(head_of_slope, slope);
        slope = 0;
      }
    }
    block.find_thread();
    if (Block::FragmentS::has(block.warp)) {
      typename Block::FragmentS::Accumulators products, d_probs;
      block.multiply(products, d_probs, stage);
      if (visit.is_full) {
        block.template store_gradients<false>(products, d_probs, visit, stage, slope);
      } else {
        block.template store_gradients<true>(products, d_probs, visit, stage, slope);
      }
    }
    if (takes_turns) block.wait_for_turn(visit);
    __syncthreads();  // P and dX are there, and it is the block's turn
    block.find_thread();
    const bool is_first = in_order && ptx::load_word(block.s_word(0)) == 0;
    if (p.dv.tensor.data != nullptr && Block::FragmentDV::has(block.warp)) {
      multiply_shared<C.score.elements.q, C.tile_q, typename Block::TileP, false, typename Block::TileDOut>(
          dv, block.s_probs(), Block::FragmentDV::row(block.warp), block.s_d_out(stage),
          Block::FragmentDV::column(block.warp), block.lane);
    }
    if (p.dk.tensor.data != nullptr && Block::FragmentDK::has(block.warp)) {
      multiply_shared<C.score.elements.q, C.tile_q, typename Block::TileP, false, typename Block::TileQ>(
          dk, block.s_d_products(), Block::FragmentDK::row(block.warp), block.s_q(stage),
          Block::FragmentDK::column(block.warp), block.lane);
    }
    block.find_thread();
    if (wants_dq && Block::FragmentDQ::has(block.warp)) block.add_dq(visit, is_first);
    if constexpr (C.stages == 1) {
      __syncthreads();  // all are done with q and d_out
      load(after(1), 0);
    } else {
      stage = 1 - stage;
    }
  }
  __syncthreads();
  const QueryVisit last = visited.visit(after(Visited::kSlots - 1));
  if (takes_turns) block.end_turn(last);
  if constexpr (C.score.alibi) {
    for (; wants_slope && head_of_slope < first_head + group; ++head_of_slope) {
      block.store_slope(head_of_slope, slope);
      slope = 0;
    }
  }
  block.store_dk_and_dv(dk, dv);
}

}  // namespace tessella::device
