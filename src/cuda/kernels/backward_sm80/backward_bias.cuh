// The gradient of bias. It computes scores and their gradients again, one tile of d_bias at a time, and sums them in
// order over the axes on which bias broadcasts. It stores nothing but the tile.
#pragma once

#include "cuda/device/tile/gradient.cuh"
#include "cuda/kernels/backward_sm80/block_backward.cuh"

namespace tessella::device {

// The indices of an axis that a block sums over: all if bias broadcasts on the axis, else the block's own.
struct BiasAxis {
  int32_t begin, end;
  __device__ BiasAxis(bool is_summed, int32_t own, int32_t count)
      : begin(is_summed ? 0 : own), end(is_summed ? count : own + 1) {}
};

template <BackwardSm80Config C>
struct BackwardBias : BlockBackward<C> {
  using Block = BlockBackward<C>;
  using Block::Block;
  using Block::p, Block::thread, Block::lane, Block::warp, Block::sequence, Block::batch_idx, Block::head_kv,
      Block::first_key;
  using typename Block::FragmentS;

  // True if the tile sees key tile kv_tile of slots, whose first slot may belong to no key.
  __device__ __forceinline__ bool sees(int32_t head_idx, int32_t tile) const {
    if (tile * C.tile_q >= sequence.len_q) return false;
    const QueryTile of = p.tiles[Block::head(head_idx).first + tile];
    return first_key < of.largest_end && (first_key + C.tile_kv > of.smallest_begin || first_key < p.masks.keep_first);
  }

  __device__ __forceinline__ void add_tile(int32_t head_idx, int32_t tile, typename FragmentS::Accumulators& sums) {
    Block::find_thread();
    Block::load_keys();
    Block::load_queries(head_idx, tile, 0);
    ptx::commit_copies();
    ptx::wait_copies<0>();
    __syncthreads();
    Block::prepare_keys();
    Block::clear_idle_queries(0);
    Block::find_thread();
    if (FragmentS::has(warp)) {
      typename FragmentS::Accumulators products, d_probs;
      Block::multiply(products, d_probs, 0);
      const typename Block::Gradient gradient(p, sequence, batch_idx, head_idx);
      Block::template gradients<true, true>(
          products, d_probs, gradient, head_idx, tile, Block::kHasMap, 0,
          [&](int m, int j, int r, const ScoreGradients& first, const ScoreGradients& second, const auto&) {
            sums[m][j][r * 2] += first.d_unmodified;
            sums[m][j][r * 2 + 1] += second.d_unmodified;
          });
    }
    __syncthreads();  // before the next tile's copies
  }

  // Stores the sums of one tile, or of each row or column if these are summed. Sums are in shared memory, [key][query].
  __device__ __forceinline__ void store(const typename FragmentS::Accumulators& sums, int32_t entry_batch,
                                        int32_t entry_head, int32_t first_query, int32_t first_slot) const {
    const portable::ScoreGradientParams& to = p.d_bias;
    auto* all = reinterpret_cast<float*>(ptx::dynamic_shared());
#pragma unroll
    for (int m = 0; m < (FragmentS::has(warp) ? FragmentS::kMBlocks : 0); ++m) {
#pragma unroll
      for (int j = 0; j < FragmentS::kBlocks; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = FragmentS::row(warp) + m * 16 + i / 2 * 8 + lane / 4;
          const int query = FragmentS::column(warp) + j * 8 + lane % 4 * 2 + i % 2;
          all[key * C.tile_q + query] = sums[m][j][i];
        }
      }
    }
    __syncthreads();
    const bool sums_q = to.q_stride == 0, sums_kv = to.kv_stride == 0;
    const int queries = sums_q ? 1 : C.tile_q, keys = sums_kv ? 1 : C.tile_kv;
    constexpr Element kBias = C.score.bias_is_f32 ? Element::f32 : Element(C.score.elements.q);
    for (int i = thread; i < queries * keys; i += Block::kThreads) {
      const int query = i / keys, key = i % keys;
      if (first_query + query >= (sums_q ? 1 : to.queries) || first_slot + key >= (sums_kv ? 1 : to.keys)) continue;
      float sum = 0;
      for (int of_key = key; of_key < (sums_kv ? C.tile_kv : key + 1); ++of_key) {
        for (int of_query = query; of_query < (sums_q ? C.tile_q : query + 1); ++of_query) {
          sum += all[of_key * C.tile_q + of_query];
        }
      }
      const int64_t at = entry_batch * to.batch_stride + entry_head * to.head_stride +
                         (first_query + query) * to.q_stride + (first_slot + key) * to.kv_stride;
      store_gradient<kBias>(to.data, at, sum, to.is_f32 != 0, to.accumulates != 0);
    }
  }
};

// Blocks count tiles of slots fastest, then query tiles, heads and batches of d_bias. For fp32, which splits its
// operands, and for wide rows the kernel asks for only one block a multiprocessor, which frees registers; otherwise the
// assembler decides.
template <BackwardSm80Config C>
__global__ void __launch_bounds__(C.num_warps * 32,
                                  C.score.elements.q == Element::f32 || C.head_dim_qk > 128 || C.head_dim_v > 128 ? 1
                                                                                                                  : 0)
    backward_bias(const __grid_constant__ BackwardParams p) {
  const portable::ScoreGradientParams& to = p.d_bias;
  const bool sums_q = to.q_stride == 0, sums_kv = to.kv_stride == 0;
  const bool sums_heads = to.head_stride == 0, sums_batches = to.batch_stride == 0;
  const auto tiles = [](int32_t size, int32_t tile) { return (size + tile - 1) / tile; };
  const int32_t kv_tiles = tiles(sums_kv ? p.sequences.seqlen_kv : to.keys, C.tile_kv);
  const int32_t q_tiles = tiles(sums_q ? p.sequences.seqlen_q : to.queries, C.tile_q);
  const int32_t heads = p.sequences.heads_q.value;
  auto block_idx = static_cast<int32_t>(blockIdx.x);
  const auto take = [&](int32_t count) {
    const int32_t rest = block_idx / count, own = block_idx - rest * count;
    block_idx = rest;
    return own;
  };
  const int32_t kv_tile = take(sums_kv ? 1 : kv_tiles), q_tile = take(sums_q ? 1 : q_tiles);
  const int32_t entry_head = take(sums_heads ? 1 : heads), entry_batch = block_idx;

  BackwardBias<C> block(p, ptx::shared_address(ptx::dynamic_shared()));
  typename BackwardBias<C>::FragmentS::Accumulators sums;
  clear(sums);
  const BiasAxis batches(sums_batches, entry_batch, p.sequences.batch), of_heads(sums_heads, entry_head, heads);
  const BiasAxis queries(sums_q, q_tile, q_tiles), slots(sums_kv, kv_tile, kv_tiles);
  for (block.batch_idx = batches.begin; block.batch_idx < batches.end; ++block.batch_idx) {
    block.sequence = sequence(p.sequences, p.masks, block.batch_idx);
    for (int32_t head_idx = of_heads.begin; head_idx < of_heads.end; ++head_idx) {
      block.head_kv = p.sequences.group.quotient(head_idx);
      for (int32_t tile = queries.begin; tile < queries.end; ++tile) {
        for (int32_t slot_tile = slots.begin; slot_tile < slots.end; ++slot_tile) {
          block.first_key = slot_tile * C.tile_kv - block.sequence.slot_kv;
          if (block.sees(head_idx, tile)) block.add_tile(head_idx, tile, sums);
        }
      }
    }
  }
  block.store(sums, entry_batch, entry_head, q_tile * C.tile_q, kv_tile * C.tile_kv);
}

}  // namespace tessella::device
