// FlashAttention (arXiv 2205.14135, algorithms 1 and 2), one thread block a head as in the paper. O = 0, l = 0, m =
// -inf in memory; tiles K_j, V_j outside, tiles Q_i inside:
//   S = mask(score(Q_i K_j^T)),  m~ = rowmax(S),  P~ = exp(S - m~),  l~ = rowsum(P~)
//   m_new = max(m_i, m~),        l_new = e^{m_i - m_new} l_i + e^{m~ - m_new} l~
//   O_i <- ( l_i e^{m_i - m_new} O_i + e^{m~ - m_new} dropout(P~) V_j ) / l_new
// K and V are read once; O_i, l_i, m_i go to memory and back at every visit, in fp32, as 16-bit outputs would be
// rounded at each.
#pragma once

#include "cuda/kernels/ladder/head_tiles.cuh"

namespace tessella::device {

// O, l and m of a row. Each lane always handles the same elements of O, so no lane waits for another.
template <LadderConfig C>
struct RowMemory {
  float* o;   // [head_dim_v]
  float* lm;  // l, m

  // Rows of a head and slice lie together: all O, then all l and m.
  __device__ RowMemory(const LadderParams& params, int64_t head_idx, int32_t slice_idx, int64_t i) {
    const int64_t rows = portable::matrix_rows(C, params);
    float* base = params.scratch + (head_idx * params.forward.tiling.slices_v + slice_idx) * rows * (C.head_dim_v + 2);
    o = base + i * C.head_dim_v;
    lm = base + rows * C.head_dim_v + i * 2;
  }
};

// Grid: heads of all sequences, slices of v.
template <LadderConfig C>
__global__ void __launch_bounds__(C.num_warps * 32) flash_1(const __grid_constant__ LadderParams params) {
  using Head = HeadTiles<C>;
  extern __shared__ __align__(128) char shared[];
  const ForwardParams& p = params.forward;
  const auto block = static_cast<int32_t>(blockIdx.x);
  const int32_t batch_idx = p.sequences.heads_q.quotient(block);
  Head head(p, shared, {batch_idx, block - batch_idx * p.sequences.heads_q.value, 0, static_cast<int32_t>(blockIdx.y)});
  const int32_t tiles_q = (head.sequence.len_q + C.tile_q - 1) / C.tile_q;
  const int32_t tiles_kv = (head.sequence.len_kv + C.tile_kv - 1) / C.tile_kv;
  const portable::Dropout dropout = dropout_of(p.scores);
  const auto memory = [&](int32_t tile, int m, int r) {
    return RowMemory<C>(params, head.head_idx(), head.work.slice_idx, tile * C.tile_q + head.row(m, r));
  };
  const auto for_each_row = [&](const auto& fn) {
#pragma unroll
    for (int m = 0; m < Head::kMBlocks; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) fn(m, r);
    }
  };
  for (int32_t tile = 0; tile < p.tiling.tiles_q; ++tile) {
    head.work.tile_idx = tile;
    Head::write_rows_without_query(p, head.work, head.sequence);
  }
  for (int32_t tile = 0; tile < tiles_q; ++tile) {
    for_each_row([&](int m, int r) {
      const RowMemory<C> row = memory(tile, m, r);
      for (int j = 0; j < Head::kBlocksV; ++j) *reinterpret_cast<float2*>(row.o + head.column(j, 0)) = {0, 0};
      if (head.lane % 4 == 0) *reinterpret_cast<float2*>(row.lm) = {head.first_sum(), head.first_maximum()};
    });
  }
  __syncwarp();

  for (int32_t tile_kv = 0; tile_kv < tiles_kv; ++tile_kv) {
    head.wait();  // the last k and v are there, though no query may have seen them, and all are done with them
    head.load_k(tile_kv);
    head.load_v(tile_kv);
    for (int32_t tile_q = 0; tile_q < tiles_q; ++tile_q) {
      const int32_t first = tile_q * C.tile_q, last = min(first + C.tile_q, head.sequence.len_q) - 1;
      if (!key_tiles<C.tile_kv>(head.range(first), head.range(last), p.masks.keep_first).sees(tile_kv)) continue;
      __syncthreads();  // all are done with the last q
      head.load_q(tile_q);
      if constexpr (C.score.mask == MaskLevel::bits)
        head.load_v(tile_kv);  // the last tile of queries has cleared values
      head.wait();
      head.prepare_q();
      head.clear_unseen_values(tile_q, tile_kv);

      typename Head::Scores s;
      head.scores(s, tile_q, tile_kv);
      float max[Head::kMBlocks][2], sum[Head::kMBlocks][2];
      for_each_row([&](int m, int r) {
        float largest = -kInfinity;
#pragma unroll
        for (int j = 0; j < Head::kBlocks; ++j) largest = fmaxf(largest, fmaxf(s[m][j][r * 2], s[m][j][r * 2 + 1]));
        max[m][r] = row_max(largest);
        const float base = max[m][r] == -kInfinity ? 0.0f : max[m][r];
        float total = 0;
#pragma unroll
        for (int j = 0; j < Head::kBlocks; ++j) {
#pragma unroll
          for (int i = r * 2; i < r * 2 + 2; ++i) {
            s[m][j][i] = ptx::exp2((s[m][j][i] - base) * kLog2e);
            total += s[m][j][i];
            if constexpr (C.score.dropout) {
              const bool keeps = dropout.keeps(static_cast<uint64_t>(head.head_idx()), first + head.row(m, r),
                                               tile_kv * C.tile_kv + head.column(j, i));
              if (!keeps) s[m][j][i] = 0;
            }
          }
        }
        sum[m][r] = row_sum(total);
      });
      typename Head::Output pv = {};
      multiply_pv<C.score.elements.p, typename Head::TileV>(pv, s, head.s_v, head.lane, [](int) {});

      for_each_row([&](int m, int r) {
        const RowMemory<C> row = memory(tile_q, m, r);
        const auto [l, m_old] = *reinterpret_cast<const float2*>(row.lm);
        const float m_new = fmaxf(m_old, max[m][r]);
        const float old_weight = l * weight(m_old, m_new);
        // A row that sees no key of the tile does not change; a sum of NaN shows that it sees one.
        const bool sees = max[m][r] > -kInfinity || sum[m][r] != 0;
        const float tile_weight = max[m][r] == -kInfinity ? 1.0f : weight(max[m][r], m_new);
        const float l_new = old_weight + tile_weight * sum[m][r];
        const float inverse = l_new == 0 ? 0.0f : 1 / l_new;
        // Dropout's factor follows the product: 16-bit P~ may not hold it.
        const float pv_weight = C.score.dropout ? tile_weight * p.scores.keep_scale : tile_weight;
#pragma unroll
        for (int j = 0; j < Head::kBlocksV; ++j) {
          auto* o = reinterpret_cast<float2*>(row.o + head.column(j, 0));
          if (!sees) continue;
          *o = {(old_weight * o->x + pv_weight * pv[m][j][r * 2]) * inverse,
                (old_weight * o->y + pv_weight * pv[m][j][r * 2 + 1]) * inverse};
        }
        __syncwarp();  // four lanes have read l and m
        if (sees && head.lane % 4 == 0) *reinterpret_cast<float2*>(row.lm) = {l_new, m_new};
      });
    }
  }
  head.wait();

  for (int32_t tile = 0; tile < tiles_q; ++tile) {
    for_each_row([&](int m, int r) {
      const RowMemory<C> row = memory(tile, m, r);
      const int32_t i = tile * C.tile_q + head.row(m, r);
      const auto [l, m_end] = *reinterpret_cast<const float2*>(row.lm);
      if (head.lane % 4 == 0) head.store_lse(i, log_sum(m_end, l));
      for (int j = 0; j < Head::kBlocksV; ++j) {
        head.store_out(i, head.column(j, 0), row.o[head.column(j, 0)], row.o[head.column(j, 1)]);
      }
    });
  }
}

}  // namespace tessella::device
