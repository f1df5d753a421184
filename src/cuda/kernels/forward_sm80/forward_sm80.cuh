// FlashAttention-2's forward (arXiv 2307.08691, algorithm 1) with the matrix instructions of one warp: any NVIDIA GPU
// from Ampere on, bf16, f16 and fp32.
//
//   for each tile of queries:                                          a thread block; a warp owns 16 or 32 rows
//     o = 0, max = -inf, sum = 0
//     for each tile of keys it sees:
//       s = q k^T -> scale, softcap, bias, ALiBi, score_mod -> masks   registers
//       p = 2^(s - max), update max and sum, rescale o                 registers
//       o += p v
//     out = o / sum, lse = max + ln(sum)
//
// k is copied asynchronously while o += p v runs, v while s = q k^T and the softmax run. Registers hold o, the scores
// and little else: the loop over keys reads lengths, limits and the query tile from shared memory when it needs them.
#pragma once

#include "cuda/device/ptx/order.cuh"
#include "cuda/device/score/band_mask.cuh"
#include "cuda/device/score/dropout.cuh"
#include "cuda/device/score/mask.cuh"
#include "cuda/device/score/output.cuh"
#include "cuda/device/score/score.cuh"
#include "cuda/device/score/softcap.cuh"
#include "cuda/device/score/softmax.cuh"
#include "cuda/device/tile/multiply.cuh"
#include "cuda/kernels/forward_sm80/block_sm80.cuh"

namespace tessella::device {

template <ForwardSm80Config C>
struct ForwardSm80 : BlockSm80<C> {
  using Block = BlockSm80<C>;
  using Block::Block;
  using Block::p, Block::query_tile, Block::s_q, Block::thread, Block::lane, Block::warp_row, Block::s_k, Block::s_v,
      Block::first_q, Block::query, Block::bounds, Block::warp_tiles, Block::kRowsOfWarp, Block::kMBlocks,
      Block::kBlocks, Block::kBlocksV, Block::kWords, Block::kSeenAt, Block::kVisibleAt;
  using typename Block::TileQ, typename Block::TileK, typename Block::TileV, typename Block::Scores,
      typename Block::Score;

  // How many loads ahead the right operands of matrix instructions are loaded. With one block of rows a load feeds two
  // instructions, and the loads keep shared memory so busy that each takes as long as eight of them. Modifications, the
  // softcap and, with narrow rows, dropout need the registers; fp32 hides its loads behind its many instructions.
  static constexpr bool kLacksRegisters =
      C.score.score_mod || C.score.softcap || (C.score.dropout && C.head_dim_qk == 64);
  static constexpr int kAhead = kMBlocks == 1 ? 4 : kLacksRegisters ? 0 : 1;

  // If registers are short, the warp's first and last tiles are read from shared memory each time. Only plain kernels
  // of small tiles hold the source of the keys in registers.
  static constexpr bool kIsPlain = portable::is_plain(C), kHasSmallSource = portable::has_small_source(C);
  static constexpr bool kReadsLimits =
      C.score.mask == MaskLevel::band && !C.score.softcap && !kHasSmallSource && !kIsPlain;
  static constexpr bool kKeepsSource = kIsPlain && portable::accumulators(C) <= 160;

  template <class Meanwhile>
  __device__ __forceinline__ void scores(Scores& s, const Meanwhile& meanwhile) const {
    multiply_qk<C.score.elements.q, C.head_dim_qk, TileQ, TileK, kAhead>(s, s_q, s_k(), warp_row, lane, meanwhile);
  }

  __device__ Score score_of_tile() const {
    return Score(p.scores, p.arrays, query_tile.sequence, query_tile.work.batch_idx, query_tile.work.head_idx);
  }
  // True if the tile's keys and all of the warp's queries are the sequence's.
  __device__ bool is_within(const Score& score, int32_t tile) const {
    return score.are_within(first_q() + warp_row, kRowsOfWarp, tile * C.tile_kv, C.tile_kv);
  }
  // IsWithin: what is_within() says; false serves as well.
  template <bool IsWithin>
  __device__ __forceinline__ void modify_each(Scores& s, const Score& score, int32_t tile) const {
    const typename Score::Origin origin = score.origin(query(0, 0), tile * C.tile_kv + lane % 4 * 2);
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
      for (int m = 0; m < kMBlocks; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int32_t row = m * 16 + i / 2 * 8, column = j * 8 + i % 2;
          s[m][j][i] =
              score.template value<IsWithin>(s[m][j][i], origin, row, column, Score::q_minus_k(origin, row - column));
        }
      }
      // Uses what 16 keys load before it loads more: the loads of a whole tile would fill all registers.
      if ((C.score.bias || (C.score.score_mod && !kHasSmallSource)) && j % 2 == 1) ptx::keep_loads_in_place();
    }
  }
  // Applies softcap, bias, ALiBi and the caller's score modification.
  __device__ __forceinline__ void modify(Scores& s, const Score& score, int32_t tile) const {
    if constexpr (Score::kHasSeries) {
      cap(score, s);
    } else if constexpr (kHasSmallSource) {
      const Score of_tile = score_of_tile();  // not the loop's: a register less
      if (!C.score.batch_invariant && is_within(of_tile, tile)) {
        modify_each<true>(s, of_tile, tile);
      } else {
        modify_each<false>(s, of_tile, tile);
      }
    } else if constexpr (!Score::kIsPlain) {
      modify_each<false>(s, score, tile);
    }
  }

  // Hides what lies outside the band.
  __device__ __forceinline__ void mask(Scores& s, int32_t tile) const {
    hide_outside(s, tile * C.tile_kv, p.masks.keep_first, lane,
                 [&](int m, int r) { return bounds(query(m, r) - first_q()); });
  }

  __device__ uint32_t s_visible(int m) const { return s_q + kVisibleAt + (m * Block::kThreads + thread) * 8; }
  __device__ uint32_t s_seen(int warp, int word) const { return s_q + kSeenAt + (warp * kWords + word) * 4; }
  // Finds what the warp's rows see of a partial tile under the band and the element masks, before the scores take the
  // registers. hide_invisible() and clear_unseen_values() read the result. False if the rows see nothing.
  __device__ __forceinline__ bool find_visible(int32_t tile, bool sees, bool is_full) const {
    ptx::keep_loads_in_place();
    uint32_t any = 0;
#pragma unroll 1
    for (int m = 0; m < (sees ? kMBlocks : 0); ++m) {
      uint32_t visible[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int32_t row = query(m, r);
        visible[r] =
            is_full ? ~0u : columns_in<C.tile_kv>(bounds(row - first_q()), tile * C.tile_kv, p.masks.keep_first, lane);
        if (row >= query_tile.sequence.len_q) visible[r] = 0;
      }
      hide_own_columns<C.score, C.tile_kv>(p.masks, p.arrays, query_tile.sequence, query_tile.work.batch_idx,
                                           query_tile.work.head_idx, query(m, 0) - lane / 4, tile * C.tile_kv, visible);
      ptx::store_words(s_visible(m), visible[0], visible[1]);
      any |= visible[0] | visible[1];
    }
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      const uint32_t own = any >> word * 8;  // the lane's columns in four blocks of 8 keys, two in each
      const uint32_t keys = ((own & 0x03) | (own & 0x0C) << 6 | (own & 0x30) << 12 | (own & 0xC0) << 18)
                            << lane % 4 * 2;
      const uint32_t seen = __reduce_or_sync(kAllLanes, keys);
      if (lane == 0) ptx::store_word(s_seen(thread / 32, word), seen);
    }
    return __any_sync(kAllLanes, any != 0);
  }
  // Hides the scores that find_visible() found hidden.
  __device__ __forceinline__ void hide_invisible(Scores& s) const {
#pragma unroll
    for (int m = 0; m < kMBlocks; ++m) {
      const uint2 visible = ptx::load_words(s_visible(m));
      hide_columns(s[m], 0, visible.x);
      hide_columns(s[m], 1, visible.y);
    }
  }

  // Zeroes the probabilities that dropout drops in block columns j and j + 1, 16 keys.
  __device__ __forceinline__ void drop(Scores& s, int32_t tile, int j) const {
    const portable::Dropout dropout = dropout_of(p.scores);
    const uint64_t head_idx = dropout_head(p.sequences, query_tile.work);
    int32_t first_row = warp_row;
    ptx::forget(first_row);  // else values derived from it would hold registers between steps of 16 keys
#pragma unroll
    for (int m = 0; m < kMBlocks; ++m) {
      device::drop(s[m], j, dropout, head_idx, (first_q() + first_row) / 16 + m, (tile * C.tile_kv + j * 8) / 16, lane);
    }
  }

  // Zeroes values of keys that no query of this tile sees: they may be NaN, and 0 * NaN is NaN.
  __device__ __forceinline__ void clear_unseen_values() const {
    bool clears = false;
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      uint32_t seen = 0;
#pragma unroll
      for (int warp = 0; warp < C.num_warps; ++warp) seen |= ptx::load_word(s_seen(warp, word));
      constexpr int kLast = C.tile_kv % 32;
      const uint32_t unseen = ~seen & (kLast != 0 && word == kWords - 1 ? (1u << kLast) - 1 : ~0u);
      if (unseen == 0) continue;
      clears = true;
#pragma unroll 1
      for (int key = thread / 32; key < 32; key += C.num_warps) {
        if ((unseen >> key & 1) == 0) continue;
        for (int chunk = lane; chunk < TileV::kChunks; chunk += 32) {
          ptx::store_chunk(s_v() + TileV::offset(word * 32 + key, chunk), {0, 0, 0, 0});
        }
      }
    }
    if (clears) __syncthreads();
  }

  __device__ Output<C.score, kRowsOfWarp, C.head_dim_v> output() const {
    return {p, query_tile.work, query_tile.sequence, first_q() + warp_row, lane};
  }
};

template <ForwardSm80Config C>
__global__ void __launch_bounds__(C.num_warps * 32, C.blocks_per_sm)
    forward_sm80(const __grid_constant__ ForwardParams p) {
  using Block = ForwardSm80<C>;
  using Score = typename Block::Score;
  extern __shared__ __align__(128) char shared[];
  const Block block(p, shared);
  const auto& query_tile = block.query_tile;
  typename Block::Visited visited;
  int32_t tile = block.find_query_tile(visited);
  if (tile < 0) return;
  __syncthreads();
  if (C.score.elements.q == Element::f32 || p.scores.scale < 0) {
    ptx::wait_copies<0>();
    __syncthreads();
    prepare_q<C.score.elements.q, typename Block::TileQ, Block::kThreads>(block.s_q, block.thread, p.scores.scale < 0);
  }

  const Score score = block.score_of_tile();
  const float scale_log2 = score.scale_log2();
  float o[Block::kMBlocks][Block::kBlocksV][4] = {};
  RowState rows[Block::kMBlocks];
  bool is_large = false;
  const auto rescale = [&](int m, const float(&factor)[2]) {
#pragma unroll
    for (int j = 0; j < Block::kBlocksV; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) o[m][j][i] *= factor[i / 2];
    }
  };

  const auto kept_source = block.key_source();
  const auto source = [&] { return Block::kKeepsSource ? kept_source : block.key_source(); };
  const int32_t end = query_tile.tiles.end;
  const int32_t full_begin = block.warp_tiles().full_begin, full_end = block.warp_tiles().full_end;
  while (tile < end) {
    ptx::wait_copies<0>();
    __syncthreads();  // k has landed for every thread, and all are done with the last v
    // The first instructions of each product come before the address computation of the next copy.
    const auto load_v = [&] {
      block.load_v(source(), tile);
      ptx::commit_copies();
    };
    const bool is_full = Block::kReadsLimits ? block.warp_tiles().is_full(tile) : tile >= full_begin && tile < full_end;
    bool sees = is_full || block.warp_tiles().sees(tile);
    const bool has_bits = visited.is_partial(tile);
    if constexpr (C.score.mask == MaskLevel::bits) {
      if (has_bits) sees = block.find_visible(tile, sees, is_full);
    }
    typename Block::Scores s;
    if (sees) {
      block.scores(s, load_v);
      block.modify(s, score, tile);
      if (!is_full && !has_bits) block.mask(s, tile);
      if constexpr (C.score.mask == MaskLevel::bits) {
        if (has_bits) block.hide_invisible(s);
      }
      float max[Block::kMBlocks][2];
      find_max(s, max);
      // In fp32 the rounding of a scaled maximum is visible, unless scores are products, which are rounded at that size
      // too.
      constexpr bool kSubtractsMax = C.score.elements.q == Element::f32 && !Score::kAreProducts;
      update_max<C.score.batch_invariant, kSubtractsMax>(max, rows, scale_log2, kLag, is_large, rescale);
      if (is_large) subtract_max(s, rows);
    } else {
      load_v();
    }
    ptx::wait_copies<0>();
    __syncthreads();  // v has landed for every thread, and all are done with k
    const int32_t next = block.after(visited, tile);
    const auto load_k = [&] {
      const auto from = source();
      if (next < end) block.load_k(from.k, query_tile.work, query_tile.sequence, from.len_kv, next);
      ptx::commit_copies();
    };
    if constexpr (C.score.mask == MaskLevel::bits) {
      if (has_bits) block.clear_unseen_values();
    }
    if (sees) {
      multiply_pv<C.score.elements.p, typename Block::TileV, Block::kAhead>(o, s, block.s_v(), block.lane, [&](int j) {
        exponentiate(s, rows, scale_log2, is_large, j, j + 2);
        if constexpr (C.score.dropout) block.drop(s, tile, j);
        if (j == 0) load_k();
      });
    } else {
      load_k();
    }
    tile = next;
  }
  ptx::wait_copies<0>();
  const auto output = block.output();
  float by[Block::kMBlocks][2];
  output.finish_rows(rows, score.scale(), by);
  scale_rows(o, by);
  output.store(o);
}

}  // namespace tessella::device
