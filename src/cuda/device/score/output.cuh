// Writes the results of a block of queries: rows of out and lse. Accumulators have the layout of ptx/mma.cuh.
#pragma once

#include "cuda/device/score/score.cuh"
#include "cuda/device/score/softmax.cuh"
#include "cuda/device/tile/multiply.cuh"
#include "cuda/device/tile/sequence.cuh"
#include "cuda/device/tile/work_tile.cuh"
#include "cuda/device/tile/zero_rows.cuh"
#include "portable/forward_params.hpp"
#include "portable/output_params.hpp"
#include "portable/score_config.hpp"

namespace tessella::device {

using portable::OutputParams;

// Multiplies row r of block m by by[m][r].
template <int MBlocks, int BlocksV>
__device__ __forceinline__ void scale_rows(float (&o)[MBlocks][BlocksV][4], const float (&by)[MBlocks][2]) {
#pragma unroll
  for (int m = 0; m < MBlocks; ++m) {
#pragma unroll
    for (int j = 0; j < BlocksV; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) o[m][j][i] *= by[m][i / 2];
    }
  }
}

// Writes blocks `from` and from + 1 of row r (0 or 1) of the lane's accumulators to the columns of out from `first` on;
// the row begins at element `at`. Each lane writes 8 bytes of 16-bit elements, so four lanes write 32 bytes of a row.
// All lanes of the warp call it.
template <Element E, int BlocksV>
__device__ __forceinline__ void store_quad(const OutputParams& p, int32_t head_dim_v, const float (&o)[BlocksV][4],
                                           int from, int r, int64_t at, int32_t first, int lane, bool is_there) {
  // A pair of lanes holds two words of each block. The even lane takes those of the first block, the odd lane the
  // others.
  const bool odd = lane % 2 != 0;
  uint32_t words[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) words[j] = Multiply<E>::pack(o[from + j][r * 2], o[from + j][r * 2 + 1]);
  const uint32_t got = __shfl_xor_sync(kAllLanes, odd ? words[0] : words[1], 1);
  const int32_t column = first + lane % 2 * 8 + lane % 4 / 2 * 4;
  if (!is_there || column >= head_dim_v) return;
  *reinterpret_cast<uint2*>(static_cast<uint16_t*>(p.out.data) + at + column) =
      odd ? make_uint2(got, words[1]) : make_uint2(words[0], got);
}

// The same in pairs of columns, for fp32 and for rows of out that are not aligned to 16 bytes.
template <Element E, int BlocksV>
__device__ __forceinline__ void store_pairs(const OutputParams& p, int32_t head_dim_v, const float (&o)[BlocksV][4],
                                            int from, int r, int64_t at, int32_t first, int lane, bool is_there) {
  const bool is_f32 = E == Element::f32 || p.out_element == Element::f32;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int32_t column = first + i * 8 + lane % 4 * 2;
    const float pair[2] = {o[from + i][r * 2], o[from + i][r * 2 + 1]};
    if (is_f32 && p.out_vector_store) {
      if (!is_there || column >= head_dim_v) continue;
      *reinterpret_cast<float2*>(static_cast<float*>(p.out.data) + at + column) = make_float2(pair[0], pair[1]);
      continue;
    }
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      if (!is_there || column + c >= head_dim_v) continue;
      if (is_f32) {
        static_cast<float*>(p.out.data)[at + column + c] = pair[c];
      } else if constexpr (E != Element::f32) {
        const uint32_t word = Multiply<E>::pack(pair[0], pair[1]);
        static_cast<uint16_t*>(p.out.data)[at + column + c] = static_cast<uint16_t>(word >> c * 16);
      }
    }
  }
}

// Writes columns of out from `first` on, of rows that begin at elements at[m][r], from the first BlocksV blocks of
// accumulators, and destroys these. Rare cases are in a loop to keep the code small: pairs of columns, and quads if
// QuadsAreRare.
template <Element E, bool QuadsAreRare, int BlocksV, int MBlocks, int Blocks>
__device__ __forceinline__ void store_rows(const OutputParams& p, int32_t head_dim_v, float (&o)[MBlocks][Blocks][4],
                                           const int64_t (&at)[MBlocks][2], const bool (&is_there)[MBlocks][2],
                                           int32_t first, int lane) {
  static_assert(BlocksV % 2 == 0);
  const bool has_quads = p.out_vector_store && p.out_element != Element::f32;
  const auto store_two = [&](int from, int32_t column, bool in_quads) {
#pragma unroll
    for (int m = 0; m < MBlocks; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (!in_quads) {
          store_pairs<E>(p, head_dim_v, o[m], from, r, at[m][r], column, lane, is_there[m][r]);
        } else if constexpr (E != Element::f32) {
          store_quad<E>(p, head_dim_v, o[m], from, r, at[m][r], column, lane, is_there[m][r]);
        }
      }
    }
  };
  const int32_t end = first + BlocksV * 8;
  if (!QuadsAreRare && has_quads) {
#pragma unroll
    for (int from = 0; from < BlocksV; from += 2) store_two(from, first + from * 8, true);
    first = end;  // no return: the loop's code would lie before this
  }
#pragma unroll 1
  for (int32_t column = first; column < end; column += 16) {
    store_two(0, column, QuadsAreRare && has_quads);
#pragma unroll
    for (int m = 0; m < MBlocks; ++m) {
#pragma unroll
      for (int j = 0; j + 2 < BlocksV; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) o[m][j][i] = o[m][j + 2][i];
      }
    }
  }
}

// The rows of one warp of forward_sm80, and the columns of its slice of v.
template <ScoreConfig C, int RowsOfWarp, int ColumnsV>
struct Output {
  static constexpr int kMBlocks = RowsOfWarp / 16;
  static constexpr int kBlocksV = ColumnsV / 8;

  const portable::ForwardParams& p;
  const WorkTile& work;
  const Sequence& sequence;
  int32_t first_row;  // the warp's, as the sequence's query
  int lane;

  // Row r (0 or 1) of block m, as the sequence's query.
  __device__ int32_t query(int m, int r) const { return first_row + m * 16 + r * 8 + lane / 4; }

  // Writes the lse of the warp's rows. by: returns the factor on the output for rows 0 and 1 of each block.
  __device__ __forceinline__ void finish_rows(const RowState (&rows)[kMBlocks], float scale,
                                              float (&by)[kMBlocks][2]) const {
    // Four lanes share 2 kMBlocks rows: lane i finishes row i % (2 kMBlocks), and the others take its factor.
    constexpr int kRows = 2 * kMBlocks;
    const int mine = lane % kRows;
    float max = 0, sum = 0;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float row = row_sum(rows[i / 2].sum[i % 2]);
      max = mine == i ? rows[i / 2].max[i % 2] : max;
      sum = mine == i ? row : sum;
    }
    const portable::TableParams& sinks = p.scores.sink;
    const bool has_sink = sinks.data != nullptr;
    const float sink = has_sink ? static_cast<const float*>(sinks.data)[work.head_idx * sinks.stride] : 0.0f;
    const RowResult result = finish(max, sum, scale, has_sink, sink);
    const int32_t row = query(mine / 2, mine % 2);
    const portable::OperandParams& lse = p.output.lse;
    if (lse.data != nullptr && row < sequence.len_q && work.slice_idx == 0 && lane % 4 < kRows) {
      static_cast<float*>(lse.data)[row_offset(lse, work, sequence, row)] = result.lse;
    }
    const float factor = C.dropout ? result.factor * p.scores.keep_scale : result.factor;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      by[i / 2][i % 2] = __shfl_sync(kAllLanes, factor, lane / 4 * 4 + i);
    }
  }

  // Writes out from the accumulators, and destroys these.
  __device__ __forceinline__ void store(float (&o)[kMBlocks][kBlocksV][4]) const {
    int64_t at[kMBlocks][2];
    bool is_there[kMBlocks][2];
#pragma unroll
    for (int m = 0; m < kMBlocks; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        at[m][r] = row_offset(p.output.out, work, sequence, query(m, r));
        is_there[m][r] = query(m, r) < sequence.len_q;
      }
    }
    store_rows<C.elements.q, false, kBlocksV>(p.output, p.inputs.head_dim_v, o, at, is_there, work.slice_idx * ColumnsV,
                                              lane);
  }
};

}  // namespace tessella::device
