// Standard attention's backward, three kernels with N x N matrices in memory between them (FlashAttention, arXiv
// 2205.14135, appendix B, algorithm 3):
//   1. P = dropout(e^(S - LSE)) and dX = P (dP - delta) cap'(S), written, rounded to the type of the inputs
//   2. dV = P^T dO and dK = scale dX^T Q, a tile of keys at a time: P and dX read
//   3. dQ = scale dX K, a tile of queries at a time: dX read
// Hidden scores are computed too. The library's forward stores no P, so the first kernel computes scores again. The
// steps before and after these are the same as in backward_sm80, which it is compared with.
#pragma once

#include "cuda/kernels/backward_sm80/backward_rows.cuh"
#include "cuda/kernels/backward_sm80/backward_sm80.cuh"
#include "cuda/kernels/ladder/params.cuh"

namespace tessella::device {

using portable::LadderBackwardParams;

// A block of one key tile, or of one query tile that goes over key tiles.
template <BackwardSm80Config C>
struct StandardBackward : BackwardSm80<C> {
  using Block = BackwardSm80<C>;
  using Block::p, Block::thread, Block::lane, Block::warp, Block::sequence, Block::batch_idx, Block::head_kv,
      Block::first_key, Block::key_tile, Block::kElement, Block::kElementBytes, Block::kThreads;
  using typename Block::FragmentS, typename Block::TileP, typename Block::TileK;

  __device__ __forceinline__ explicit StandardBackward(const LadderBackwardParams& params)
      : Block(params.backward, ptx::shared_address(ptx::dynamic_shared())) {}

  // Block idx of a grid that counts key tiles fastest, then heads, sequences. Returns the head.
  __device__ __forceinline__ int32_t find_keys(int32_t heads) {
    const auto idx = static_cast<int32_t>(blockIdx.x);
    const int32_t all_heads = idx / p.kv_tiles, tile = idx - all_heads * p.kv_tiles;
    batch_idx = all_heads / heads;
    sequence = device::sequence(p.sequences, p.masks, batch_idx);
    set_keys(tile);
    return all_heads - batch_idx * heads;
  }
  __device__ __forceinline__ void set_keys(int32_t tile) {
    key_tile = tile;
    first_key = tile * C.tile_kv;
  }
  __device__ int32_t tiles_q() const { return (sequence.len_q + C.tile_q - 1) / C.tile_q; }

  // Waits until all threads can read the copied tiles.
  __device__ __forceinline__ static void wait() {
    ptx::commit_copies();
    ptx::wait_copies<0>();
    __syncthreads();
  }

  // Row `key` of a head's matrix, from a tile's first query on.
  __device__ __forceinline__ char* matrix_row(void* matrix, int32_t head_idx, int64_t key, int32_t tile) const {
    const int64_t head = int64_t{batch_idx} * p.sequences.heads_q.value + head_idx;
    const int64_t rows = int64_t{p.kv_tiles} * C.tile_kv, columns = int64_t{p.tiles_q} * C.tile_q;
    return static_cast<char*>(matrix) + ((head * rows + key) * columns + tile * C.tile_q) * kElementBytes;
  }
  __device__ __forceinline__ void load_matrix(uint32_t to, void* matrix, int32_t head_idx, int32_t tile) const {
    constexpr int kUnroll = 4;
    const HeadRows<false> rows{matrix_row(matrix, head_idx, 0, tile), int64_t{p.tiles_q} * C.tile_q * kElementBytes};
    load_tile<TileP, C.tile_kv, kThreads, true, kUnroll>(to, rows, first_key, C.tile_q, threadIdx.x,
                                                         [](int32_t) { return true; });
  }
  __device__ __forceinline__ static void store_neighbours(char* row, int query, float first, float second) {
    if constexpr (kElement == Element::f32) {
      *reinterpret_cast<float2*>(row + query * kElementBytes) = {first, second};
    } else {
      *reinterpret_cast<uint32_t*>(row + query * kElementBytes) = Multiply<kElement>::pack(first, second);
    }
  }

  // Stores P and dX of two tiles whose rows are in shared memory.
  __device__ __forceinline__ void store_scores(const LadderBackwardParams& params, int32_t head_idx, int32_t tile,
                                               float& slope) const {
    if (!FragmentS::has(warp)) return;
    typename FragmentS::Accumulators products, d_probs;
    Block::multiply(products, d_probs, 0);
    const typename Block::Gradient gradient(p, sequence, batch_idx, head_idx);
    const int row = FragmentS::row(warp) + lane / 4, column = FragmentS::column(warp) + lane % 4 * 2;
    Block::template gradients<true>(
        products, d_probs, gradient, head_idx, tile, Block::kHasMap, 0,
        [&](int m, int j, int r, const ScoreGradients& first, const ScoreGradients& second, const auto& origin) {
          const int64_t key = first_key + row + m * 16 + r * 8;
          const int query = column + j * 8;
          store_neighbours(matrix_row(params.probs, head_idx, key, tile), query, first.prob, second.prob);
          store_neighbours(matrix_row(params.d_products, head_idx, key, tile), query, first.d_product,
                           second.d_product);
          if constexpr (C.score.alibi) {
            slope -= first.d_unmodified * gradient.distance(origin, j * 8, m * 16 + r * 8);
            slope -= second.d_unmodified * gradient.distance(origin, j * 8 + 1, m * 16 + r * 8);
          }
        });
  }

  // Writes zeros into K for keys that element masks hide from every query of the tile.
  __device__ __forceinline__ void clear_unseen_keys(int32_t head_idx, int32_t tile) const {
    const auto head = Block::head(head_idx);
    const bool meets = head.keys(tile).sees(key_tile) && head.kind(tile, key_tile) != TileClass::hidden;
    const uint32_t* seen =
        seen_keys(p.tile_map, tile_classes(p.tile_map, batch_idx, head_idx, tile) + (meets ? key_tile : 0));
    for (int key = warp; key < C.tile_kv; key += C.num_warps) {
      const bool is_seen = meets && (seen[key / 32] >> key % 32 & 1) != 0;
      if (!is_seen) Block::template clear_row<TileK>(Block::s_k(), key);
    }
    __syncthreads();
  }
};

// One block for each key tile and each query head.
template <BackwardSm80Config C>
__global__ void __launch_bounds__(C.num_warps * 32)
    standard_d_scores(const __grid_constant__ LadderBackwardParams params) {
  const BackwardParams& p = params.backward;
  StandardBackward<C> block(params);
  const int32_t head_idx = block.find_keys(p.sequences.heads_q.value);
  block.head_kv = p.sequences.group.quotient(head_idx);
  if (block.first_key >= block.sequence.len_kv) return;
  block.load_keys();
  block.wait();
  block.prepare_keys();
  float slope = 0;
  for (int32_t tile = 0; tile < block.tiles_q(); ++tile) {
    block.load_queries(head_idx, tile, 0);
    block.wait();
    block.clear_idle_queries(0);
    block.store_scores(params, head_idx, tile, slope);
    __syncthreads();  // all are done with q and d_out
  }
  if constexpr (C.score.alibi) {
    if (p.d_alibi_slopes.data != nullptr) block.store_slope(head_idx, slope);
  }
}

// One block for each key tile of each KV head.
template <BackwardSm80Config C>
__global__ void __launch_bounds__(C.num_warps * 32)
    standard_dk_dv(const __grid_constant__ LadderBackwardParams params) {
  using Block = StandardBackward<C>;
  const BackwardParams& p = params.backward;
  Block block(params);
  block.head_kv = block.find_keys(p.heads_kv);
  if (block.first_key >= block.sequence.len_kv) return;
  typename Block::FragmentDK::Accumulators dk;
  typename Block::FragmentDV::Accumulators dv;
  clear(dk);
  clear(dv);
  const int32_t group = p.sequences.group.value, first_head = block.head_kv * group;
  for (int32_t head_idx = first_head; head_idx < first_head + group; ++head_idx) {
    for (int32_t tile = 0; tile < block.tiles_q(); ++tile) {
      block.load_queries(head_idx, tile, 0);
      block.load_matrix(block.s_probs(), params.probs, head_idx, tile);
      block.load_matrix(block.s_d_products(), params.d_products, head_idx, tile);
      block.wait();
      block.clear_idle_queries(0);
      if (Block::FragmentDV::has(block.warp)) {
        multiply_shared<C.score.elements.q, C.tile_q, typename Block::TileP, false, typename Block::TileDOut>(
            dv, block.s_probs(), Block::FragmentDV::row(block.warp), block.s_d_out(0),
            Block::FragmentDV::column(block.warp), block.lane);
      }
      if (Block::FragmentDK::has(block.warp)) {
        multiply_shared<C.score.elements.q, C.tile_q, typename Block::TileP, false, typename Block::TileQ>(
            dk, block.s_d_products(), Block::FragmentDK::row(block.warp), block.s_q(0),
            Block::FragmentDK::column(block.warp), block.lane);
      }
      __syncthreads();  // all are done with the tiles
    }
  }
  block.store_dk_and_dv(dk, dv);
}

// One block for each query tile of each head.
template <BackwardSm80Config C>
__global__ void __launch_bounds__(C.num_warps * 32) standard_dq(const __grid_constant__ LadderBackwardParams params) {
  using Block = StandardBackward<C>;
  using Fragment = typename Block::FragmentDQ;
  const BackwardParams& p = params.backward;
  const RowTile at(p);
  if (at.batch_idx == p.sequences.batch) return;
  Block block(params);
  block.batch_idx = at.batch_idx;
  block.head_kv = p.sequences.group.quotient(at.head_idx);
  block.sequence = sequence(p.sequences, p.masks, at.batch_idx);
  const int32_t first = at.tile * C.tile_q;
  if (first >= block.sequence.len_q) return;
  typename Fragment::Accumulators dq;
  clear(dq);
  for (int32_t tile = 0; tile * C.tile_kv < block.sequence.len_kv; ++tile) {
    block.set_keys(tile);
    block.load_k();
    block.load_matrix(block.s_d_products(), params.d_products, at.head_idx, at.tile);
    block.wait();
    if constexpr (Block::kHasMap) block.clear_unseen_keys(at.head_idx, at.tile);
    if (Fragment::has(block.warp)) {
      multiply_shared<C.score.elements.q, C.tile_kv, typename Block::TileP, true, typename Block::TileK>(
          dq, block.s_d_products(), Fragment::row(block.warp), block.s_k(), Fragment::column(block.warp), block.lane);
    }
    __syncthreads();  // all are done with the tiles
  }
  if (!Fragment::has(block.warp)) return;
  const int64_t head = at.batch_idx * p.dq.tensor.batch_stride + at.head_idx * p.dq.tensor.head_stride;
  store_gradients<C.score.elements.q>(p.dq, dq, p.scores.scale, first + Fragment::row(block.warp), block.sequence.len_q,
                                      Fragment::column(block.warp), p.inputs.head_dim_qk, block.lane, [&](int32_t row) {
                                        return head + (block.sequence.row_q + row) * p.dq.tensor.row_stride;
                                      });
}

}  // namespace tessella::device
