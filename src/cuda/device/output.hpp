// What a block of queries leaves behind: rows of out and lse. The accumulators' places are those of ptx/mma.hpp.
#pragma once

#include "cuda/device/multiply.hpp"
#include "cuda/device/schedule.hpp"
#include "cuda/device/sequence.hpp"
#include "cuda/device/softmax.hpp"
#include "cuda/device/tile.hpp"
#include "cuda/device/zero_rows.hpp"
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

// Blocks [from, from + 4) of row r (0 or 1) of the lane's accumulators to 32 columns of out from `first` on; the row
// begins at element `at`. In 16 bits, 8 bytes a lane, so that four lanes write 32 bytes of a row. All lanes of the warp
// call it.
template <ForwardConfig C, int BlocksV>
__device__ __forceinline__ void store_quads(const ForwardParams& p, const float (&o)[BlocksV][4], int from, int r,
                                            int64_t at, int32_t first, int lane, bool is_there) {
  const bool odd = lane % 2 != 0;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    // Of two blocks a pair of lanes has two words each: the even lane gets those of the first, the odd one the others.
    uint32_t words[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      words[j] = Multiply<C.element>::pack(o[from + i + j][r * 2], o[from + i + j][r * 2 + 1]);
    }
    const uint32_t got = __shfl_xor_sync(kAllLanes, odd ? words[0] : words[1], 1);
    const int32_t column = first + (i + lane % 2) * 8 + lane % 4 / 2 * 4;
    if (!is_there || column >= p.head_dim_v) continue;
    *reinterpret_cast<uint2*>(static_cast<uint16_t*>(p.out.data) + at + column) =
        odd ? make_uint2(got, words[1]) : make_uint2(words[0], got);
  }
}

// The same in pairs of columns, where out is fp32 or its rows do not begin at multiples of 16 bytes.
template <ForwardConfig C, int BlocksV>
__device__ __forceinline__ void store_pairs(const ForwardParams& p, const float (&o)[BlocksV][4], int from, int r,
                                            int64_t at, int32_t first, int lane, bool is_there) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int32_t column = first + i * 8 + lane % 4 * 2;
    const float pair[2] = {o[from + i][r * 2], o[from + i][r * 2 + 1]};
    if (p.out_is_f32 && p.out_vector_store) {
      if (!is_there || column >= p.head_dim_v) continue;
      *reinterpret_cast<float2*>(static_cast<float*>(p.out.data) + at + column) = make_float2(pair[0], pair[1]);
      continue;
    }
    const uint32_t word = Multiply<C.element>::pack(pair[0], pair[1]);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      if (!is_there || column + c >= p.head_dim_v) continue;
      if (p.out_is_f32) {
        static_cast<float*>(p.out.data)[at + column + c] = pair[c];
      } else {
        static_cast<uint16_t*>(p.out.data)[at + column + c] = static_cast<uint16_t>(word >> c * 16);
      }
    }
  }
}

// The rows of one warp: RowsOfWarp of a tile of TileRows, which is put together in Bytes bytes of shared memory.
template <ForwardConfig C, int TileRows, int RowsOfWarp, int Bytes>
struct Output {
  static constexpr int kMBlocks = RowsOfWarp / 16;
  static constexpr int kBlocksV = C.head_dim_v / 8;

  const ForwardParams& p;
  const WorkTile& work;
  const Sequence& sequence;
  uint32_t s_out;
  int32_t first_q;  // the tile's first row, as the sequence's query
  int lane, warp_row;

  // Row r (0 or 1) of block m, as the sequence's query.
  __device__ int32_t query(int m, int r) const { return first_q + warp_row + m * 16 + r * 8 + lane / 4; }

  // Writes the lse of the warp's rows. by: what is left to multiply out by, of rows 0 and 1 of each block.
  __device__ __forceinline__ void finish_rows(const RowState (&rows)[kMBlocks], float scale,
                                              float (&by)[kMBlocks][2]) const {
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
      static_cast<float*>(p.lse.data)[row_offset(p.lse, work, sequence, row)] = result.lse;
    }
    const float factor = C.dropout ? result.factor * p.keep_scale : result.factor;
#pragma unroll
    for (int i = 0; i < kRows; ++i) by[i / 2][i % 2] = __shfl_sync(kAllLanes, factor, lane / 4 * 4 + i);
  }

  // out, through shared memory that nothing else uses now, so that whole rows are written.
  template <class Accumulators>
  __device__ __forceinline__ void store(const Accumulators& o) const {
    if (C.element == Element::f32 || p.out_is_f32) {
      store_rows<float>(o);
    } else if constexpr (C.element != Element::f32) {
      store_rows<uint16_t>(o);
    }
  }

  // As many columns at a time as there is memory for.
  template <class Stored, class Accumulators>
  __device__ __forceinline__ void store_rows(const Accumulators& o) const {
    constexpr int kTileBytes = TileRows * C.head_dim_v * static_cast<int>(sizeof(Stored));
    constexpr int kParts = (kTileBytes + Bytes - 1) / Bytes, kColumns = C.head_dim_v / kParts;
    static_assert(C.head_dim_v % kParts == 0 && kColumns % 8 == 0);
#pragma unroll
    for (int first_column = 0; first_column < C.head_dim_v; first_column += kColumns) {
      if (first_column > 0) __syncwarp();
      store_columns<Stored, kColumns>(o, first_column);
    }
  }

  template <class Stored, int Columns, class Accumulators>
  __device__ __forceinline__ void store_columns(const Accumulators& o, int first_column) const {
    using TileOut = Tile<TileRows, Columns, sizeof(Stored)>;
    static_assert(TileOut::kBytes <= Bytes);
#pragma unroll
    for (int m = 0; m < kMBlocks; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = warp_row + m * 16 + r * 8 + lane / 4;
        if constexpr (sizeof(Stored) == 2) {
          // A block of 8 columns is a chunk; its pairs are the lanes' words.
          const uint32_t s_row = s_out + TileOut::offset(row, 0) + lane % 4 * 4;
#pragma unroll
          for (int j = 0; j < Columns / 8; ++j) {
            const auto& block = o[m][first_column / 8 + j];
            ptx::store_word(TileOut::advance(s_row, 0, j), Multiply<C.element>::pack(block[r * 2], block[r * 2 + 1]));
          }
        } else {
          const uint32_t s_row = s_out + TileOut::offset(row, lane % 4 / 2) + lane % 2 * 8;
#pragma unroll
          for (int j = 0; j < Columns / 8; ++j) {
            const auto& block = o[m][first_column / 8 + j];
            ptx::store_words(TileOut::advance(s_row, 0, j * 2), __float_as_uint(block[r * 2]),
                             __float_as_uint(block[r * 2 + 1]));
          }
        }
      }
    }
    __syncwarp();
    constexpr int kChunkElements = TileOut::kChunkElements;
    constexpr int kRowsAStep = TileOut::kChunks < 32 ? 32 / TileOut::kChunks : 1;
    const int first = lane / TileOut::kChunks, num_rows = min(RowsOfWarp, sequence.len_q - first_q - warp_row);
    if (TileOut::kChunks < 32 && first >= kRowsAStep) return;
    const int64_t stride = kRowsAStep * p.out.row_stride;
    auto* to = static_cast<Stored*>(p.out.data) + work.batch_idx * p.out.batch_stride +
               work.head_idx * p.out.head_stride + work.slice_idx * C.head_dim_v + first_column +
               (sequence.row_q + first_q + warp_row + first) * p.out.row_stride;
    const int columns = min(Columns, p.head_dim_v - work.slice_idx * C.head_dim_v - first_column);
    // Chunk `part` of the lane in the row `step` rows on.
    constexpr int kChunksOfLane = (TileOut::kChunks + 31) / 32;
    const auto column = [&](int part) { return (lane % TileOut::kChunks + part * 32) * kChunkElements; };
    const auto chunk = [&](int step, int part) {
      const int idx = min(lane % TileOut::kChunks + part * 32, TileOut::kChunks - 1);
      return ptx::load_chunk(s_out + TileOut::offset(warp_row + first + step, idx));
    };
    if (p.out_vector_store) {
#pragma unroll 8
      for (int step = 0; step < RowsOfWarp; step += kRowsAStep, to += stride) {
#pragma unroll
        for (int part = 0; part < kChunksOfLane; ++part) {
          const uint4 words = chunk(step, part);
          if (first + step < num_rows && column(part) < columns) *reinterpret_cast<uint4*>(to + column(part)) = words;
        }
      }
    } else {
#pragma unroll 1
      for (int step = 0; first + step < num_rows; step += kRowsAStep, to += stride) {
        for (int part = 0; part < kChunksOfLane; ++part) {
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
