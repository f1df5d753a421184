// Standard attention, three kernels with an N x N matrix in memory between them (FlashAttention, arXiv 2205.14135,
// algorithm 0):
//   1. S = score(Q K^T), written to memory
//   2. P = dropout(softmax(S)) by rows: S read twice, P overwrites it, rounded to the type of the inputs
//   3. O = P V, times what dropout scales by, which P in 16 bits may not hold: P read
#pragma once

#include "cuda/kernels/ladder/head_tiles.cuh"

namespace tessella::device {

// The first element of row i of a head's matrix.
template <LadderConfig C>
__device__ __forceinline__ float* matrix_row(const LadderParams& params, int64_t head_idx, int64_t i) {
  return params.scratch + (head_idx * portable::matrix_rows(C, params) + i) * portable::matrix_columns(C, params);
}

// One block for each tile of S: grid.x as in forward_sm80, grid.y counts key tiles.
template <LadderConfig C>
__global__ void __launch_bounds__(C.num_warps * 32) standard_scores(const __grid_constant__ LadderParams params) {
  extern __shared__ __align__(128) char shared[];
  const HeadTiles<C> head(params.forward, shared,
                          work_tile(params.forward.tiling, params.forward.sequences.heads_q, blockIdx.x, 0));
  const int32_t tile_q = head.work.tile_idx, tile_kv = static_cast<int32_t>(blockIdx.y);
  if (tile_q * C.tile_q >= head.sequence.len_q) return;
  head.load_q(tile_q);
  head.load_k(tile_kv);
  head.wait();
  head.prepare_q();
  typename HeadTiles<C>::Scores s;
  head.scores(s, tile_q, tile_kv);
#pragma unroll
  for (int m = 0; m < HeadTiles<C>::kMBlocks; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float* to = matrix_row<C>(params, head.head_idx(), tile_q * C.tile_q + head.row(m, r)) + tile_kv * C.tile_kv;
#pragma unroll
      for (int j = 0; j < HeadTiles<C>::kBlocks; ++j) {
        *reinterpret_cast<float2*>(to + head.column(j, 0)) = {s[m][j][r * 2], s[m][j][r * 2 + 1]};
      }
    }
  }
}

// One block for each tile of rows, one warp for each row.
template <LadderConfig C>
__global__ void __launch_bounds__(C.num_warps * 32) standard_softmax(const __grid_constant__ LadderParams params) {
  const ForwardParams& p = params.forward;
  const HeadTiles<C> head(p, nullptr, work_tile(p.tiling, p.sequences.heads_q, blockIdx.x, 0));
  const auto columns = static_cast<int32_t>(portable::matrix_columns(C, params));
  const int32_t first = head.work.tile_idx * C.tile_q;
  const portable::Dropout dropout = dropout_of(p.scores);
  for (int32_t i = first + head.thread / 32; i < min(first + C.tile_q, head.sequence.len_q); i += C.num_warps) {
    float* row = matrix_row<C>(params, head.head_idx(), i);
    // Finds maximum and sum in one pass: first each lane's own, then those of the row.
    float max = -kInfinity, sum = 0;
    for (int32_t j = head.lane; j < columns; j += 32) {
      const float next = fmaxf(max, row[j]);
      sum = sum * weight(max, next) + (row[j] == -kInfinity ? 0.0f : weight(row[j], next == -kInfinity ? 0.0f : next));
      max = next;
    }
    float top = fmaxf(max, head.first_maximum());
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, apart));
    sum *= weight(max, top);
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(kAllLanes, sum, apart);
    sum += head.first_sum() * weight(head.first_maximum(), top);
    if (head.lane == 0) head.store_lse(i, log_sum(top, sum));
    const float factor = sum == 0 ? 0.0f : 1 / sum;
    const float base = top == -kInfinity ? 0.0f : top;
    for (int32_t j = head.lane; j < columns; j += 32) {
      float prob = row[j] == -kInfinity ? 0.0f : weight(row[j], base) * factor;
      if constexpr (C.score.dropout) {
        if (!dropout.keeps(static_cast<uint64_t>(head.head_idx()), i, j)) prob = 0;
      }
      if constexpr (C.score.elements.p != Element::f32) {
        const uint16_t rounded = static_cast<uint16_t>(Multiply<C.score.elements.p>::pack(prob, 0));
        prob = to_float<C.score.elements.p>(&rounded, 0);
      }
      row[j] = prob;
    }
  }
}

// The grid of forward_sm80.
template <LadderConfig C>
__global__ void __launch_bounds__(C.num_warps * 32) standard_output(const __grid_constant__ LadderParams params) {
  extern __shared__ __align__(128) char shared[];
  const ForwardParams& p = params.forward;
  const HeadTiles<C> head(p, shared, work_tile(p.tiling, p.sequences.heads_q, blockIdx.x, blockIdx.y));
  HeadTiles<C>::write_rows_without_query(p, head.work, head.sequence);
  const int32_t tile_q = head.work.tile_idx;
  if (tile_q * C.tile_q >= head.sequence.len_q) return;
  typename HeadTiles<C>::Output o = {};
  for (int32_t tile_kv = 0; tile_kv < params.kv_tiles; ++tile_kv) {
    __syncthreads();  // all are done with the last v
    head.load_v(tile_kv);
    head.wait();
    head.clear_unseen_values(tile_q, tile_kv);
    typename HeadTiles<C>::Scores probs;
#pragma unroll
    for (int m = 0; m < HeadTiles<C>::kMBlocks; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int32_t i = tile_q * C.tile_q + head.row(m, r);
        const float* from = matrix_row<C>(params, head.head_idx(), i) + tile_kv * C.tile_kv;
#pragma unroll
        for (int j = 0; j < HeadTiles<C>::kBlocks; ++j) {
          const float2 pair = *reinterpret_cast<const float2*>(from + head.column(j, 0));
          probs[m][j][r * 2] = pair.x;
          probs[m][j][r * 2 + 1] = pair.y;
        }
      }
    }
    multiply_pv<C.score.elements.p, typename HeadTiles<C>::TileV>(o, probs, head.s_v, head.lane, [](int) {});
  }
  const float by = C.score.dropout ? p.scores.keep_scale : 1.0f;
#pragma unroll
  for (int m = 0; m < HeadTiles<C>::kMBlocks; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int j = 0; j < HeadTiles<C>::kBlocksV; ++j) {
        head.store_out(tile_q * C.tile_q + head.row(m, r), head.column(j, 0), o[m][j][r * 2] * by,
                       o[m][j][r * 2 + 1] * by);
      }
    }
  }
}

}  // namespace tessella::device
