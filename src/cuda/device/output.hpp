// What a block of queries leaves behind: rows of out and lse. The accumulators' places are those of ptx/mma.hpp.
#pragma once

#include "cuda/device/multiply.hpp"
#include "cuda/device/rows.hpp"
#include "cuda/device/schedule.hpp"
#include "cuda/device/sequence.hpp"
#include "cuda/device/softmax.hpp"
#include "cuda/device/tile.hpp"
#include "portable/forward_config.hpp"
#include "portable/forward_params.hpp"

namespace tessella::device {

using portable::ForwardConfig;
using portable::ForwardParams;

// Rows that belong to the sequence and to no query: out 0, lse -inf. The block of tile t takes tiles t, t + tiles_q,
// ...
template <ForwardConfig C>
__device__ __forceinline__ void write_rows_without_query(const ForwardParams& p, const WorkTile& work,
                                                         const Sequence& sequence) {
  const ZeroRows<C.num_warps* 32> rows = {p,
                                          work,
                                          sequence,
                                          work.slice_idx * C.head_dim_v,
                                          min(p.head_dim_v, (work.slice_idx + 1) * C.head_dim_v),
                                          C.element == Element::f32 || p.out_is_f32};
  rows.write_without_query(C.tile_q);
}

// The rows of one warp, from shared memory that all warps of the block are done with.
template <ForwardConfig C>
struct Output {
  static constexpr int kRowsOfWarp = C.tile_q / C.num_warps;
  static constexpr int kMBlocks = kRowsOfWarp / 16;
  static constexpr int kBlocksV = C.head_dim_v / 8;

  const ForwardParams& p;
  const WorkTile& work;
  const Sequence& sequence;
  uint32_t s_q;  // where the tile of out is put together
  int lane, warp_row;

  __device__ int32_t first_q() const { return work.tile_idx * C.tile_q; }
  // Row r (0 or 1) of block m, as the sequence's query.
  __device__ int32_t query(int m, int r) const { return first_q() + warp_row + m * 16 + r * 8 + lane / 4; }

  // out and lse of the warp's rows; out goes through shared memory, so that whole rows are written.
  template <class Accumulators>
  __device__ __forceinline__ void store(Accumulators& o, const RowState (&rows)[kMBlocks], float scale) const {
    // The 2 kMBlocks rows of four lanes: lane i finishes row i % (2 kMBlocks), and the others take its factor.
    constexpr int kRows = 2 * kMBlocks;
    const int mine = lane % kRows;
    float max = 0, sum = 0;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float row = row_sum(rows[i / 2].sum[i % 2]);
      max = mine == i ? rows[i / 2].max[i % 2] : max;
      sum = mine == i ? row : sum;
    }
    const bool has_sink = p.sink.data != nullptr;
    const float sink = has_sink ? static_cast<const float*>(p.sink.data)[work.head_idx * p.sink.stride] : 0.0f;
    const RowResult result = finish(max, sum, scale, has_sink, sink);
    const int32_t row = query(mine / 2, mine % 2);
    if (p.lse.data != nullptr && row < sequence.len_q && work.slice_idx == 0 && lane % 4 < kRows) {
      static_cast<float*>(p.lse.data)[work.batch_idx * p.lse.batch_stride + work.head_idx * p.lse.head_stride +
                                      (sequence.row_q + row) * p.lse.row_stride] = result.lse;
    }
    const float factor = C.dropout ? result.factor * p.keep_scale : result.factor;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float of_row = __shfl_sync(kAllLanes, factor, lane / 4 * 4 + i);
#pragma unroll
      for (int j = 0; j < kBlocksV; ++j) {
        o[i / 2][j][i % 2 * 2] *= of_row;
        o[i / 2][j][i % 2 * 2 + 1] *= of_row;
      }
    }
    __syncthreads();  // every warp is done with q, k and v
    if (C.element == Element::f32 || p.out_is_f32) {
      store_rows<float>(o);
    } else if constexpr (C.element != Element::f32) {
      store_rows<uint16_t>(o);
    }
  }

  template <class Stored, class Accumulators>
  __device__ __forceinline__ void store_rows(const Accumulators& o) const {
    using TileOut = Tile<C.tile_q, C.head_dim_v, sizeof(Stored)>;
    static_assert(TileOut::kBytes <= portable::tile_bytes(C));
#pragma unroll
    for (int m = 0; m < kMBlocks; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = warp_row + m * 16 + r * 8 + lane / 4;
        if constexpr (sizeof(Stored) == 2) {
          // A block of 8 columns is a chunk; its pairs are the lanes' words.
          const uint32_t s_out = s_q + TileOut::offset(row, 0) + lane % 4 * 4;
#pragma unroll
          for (int j = 0; j < kBlocksV; ++j) {
            ptx::store_word(TileOut::advance(s_out, 0, j),
                            Multiply<C.element>::pack(o[m][j][r * 2], o[m][j][r * 2 + 1]));
          }
        } else {
          const uint32_t s_out = s_q + TileOut::offset(row, lane % 4 / 2) + lane % 2 * 8;
#pragma unroll
          for (int j = 0; j < kBlocksV; ++j) {
            ptx::store_words(TileOut::advance(s_out, 0, j * 2), __float_as_uint(o[m][j][r * 2]),
                             __float_as_uint(o[m][j][r * 2 + 1]));
          }
        }
      }
    }
    __syncwarp();
    constexpr int kChunkElements = TileOut::kChunkElements;
    constexpr int kRowsAStep = TileOut::kChunks < 32 ? 32 / TileOut::kChunks : 1;
    const int first = lane / TileOut::kChunks, num_rows = min(kRowsOfWarp, sequence.len_q - first_q() - warp_row);
    if (TileOut::kChunks < 32 && first >= kRowsAStep) return;
    const int64_t stride = kRowsAStep * p.out.row_stride;
    auto* to = static_cast<Stored*>(p.out.data) + work.batch_idx * p.out.batch_stride +
               work.head_idx * p.out.head_stride + work.slice_idx * C.head_dim_v +
               (sequence.row_q + first_q() + warp_row + first) * p.out.row_stride;
    const int columns = min(C.head_dim_v, p.head_dim_v - work.slice_idx * C.head_dim_v);
    // Chunk `part` of the lane in the row `step` rows on.
    constexpr int kParts = (TileOut::kChunks + 31) / 32;
    const auto column = [&](int part) { return (lane % TileOut::kChunks + part * 32) * kChunkElements; };
    const auto chunk = [&](int step, int part) {
      const int idx = min(lane % TileOut::kChunks + part * 32, TileOut::kChunks - 1);
      return ptx::load_chunk(s_q + TileOut::offset(warp_row + first + step, idx));
    };
    if (p.out_vector_store) {
#pragma unroll 8
      for (int step = 0; step < kRowsOfWarp; step += kRowsAStep, to += stride) {
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          const uint4 words = chunk(step, part);
          if (first + step < num_rows && column(part) < columns) *reinterpret_cast<uint4*>(to + column(part)) = words;
        }
      }
    } else {
#pragma unroll 1
      for (int step = 0; first + step < num_rows; step += kRowsAStep, to += stride) {
        for (int part = 0; part < kParts; ++part) {
          store_elements(to + column(part), min(columns - column(part), kChunkElements), chunk(step, part));
        }
      }
    }
  }

  // The first `count` elements of a chunk; none where it is not above 0.
  template <class Stored>
  __device__ __forceinline__ void store_elements(Stored* to, int count, const uint4& words) const {
    const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 16 / static_cast<int>(sizeof(Stored)); ++i) {
      if (i >= count) continue;
      if constexpr (sizeof(Stored) == 2) {
        to[i] = static_cast<uint16_t>(word[i / 2] >> (i % 2 * 16));
      } else {
        to[i] = __uint_as_float(word[i]);
      }
    }
  }
};

}  // namespace tessella::device
