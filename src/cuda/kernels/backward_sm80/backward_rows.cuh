// The steps of backward before and after its tiles: the data of each query row, dQ from its sums, and gradients of one
// number a head.
#pragma once

#include "cuda/device/tile/gradient.cuh"
#include "cuda/device/tile/piece.cuh"
#include "cuda/device/tile/zero_rows.cuh"
#include "cuda/kernels/backward_sm80/block_backward.cuh"
#include "cuda/kernels/backward_sm80/seen_rows.cuh"

namespace tessella::device {

using portable::GradientParams;
using portable::kBackwardRowThreads;

// A query tile of a head of a sequence. Blocks count tiles fastest, then heads, then sequences. Packed q or k adds one
// sequence: the rows after the last one.
struct RowTile {
  int32_t batch_idx, head_idx, tile;
  __device__ explicit RowTile(const BackwardParams& p) {
    const auto block = static_cast<int32_t>(blockIdx.x);
    const int32_t heads = block / p.tiles_q;
    tile = block - heads * p.tiles_q;
    batch_idx = p.sequences.heads_q.quotient(heads);
    head_idx = heads - batch_idx * p.sequences.heads_q.value;
  }
};

// Writes zeros in rows [begin, end) of a gradient that belong to no query or key. Block `tile` of `tiles` writes some.
__device__ __forceinline__ void zero_unused(const GradientParams& to, int32_t batch_idx, int32_t head_idx,
                                            int32_t begin, int32_t end, int32_t head_dim, int32_t tile, int32_t tiles) {
  if (to.tensor.data == nullptr || to.accumulates) return;
#pragma unroll 1
  for (int32_t row = begin + tile; row < end; row += tiles) {
    const int64_t at =
        batch_idx * to.tensor.batch_stride + head_idx * to.tensor.head_stride + row * to.tensor.row_stride;
#pragma unroll 1
    for (auto c = static_cast<int32_t>(threadIdx.x); c < head_dim; c += kBackwardRowThreads) {
      if (to.is_f32) {
        static_cast<float*>(to.tensor.data)[at + c] = 0;
      } else {
        static_cast<uint16_t*>(to.tensor.data)[at + c] = 0;
      }
    }
  }
}

// Zeroes the unused rows of a sequence, or all rows after the last one (batch_idx == batch), for which the tables give
// no number of keys.
__device__ __forceinline__ void zero_all_unused(const BackwardParams& p, const Sequence& s, const RowTile& at) {
  const bool is_rest = at.batch_idx == p.sequences.batch;
  const int32_t batch_q = p.sequences.cu_seqlens_q.data != nullptr ? 0 : at.batch_idx;
  if (!is_rest || p.sequences.cu_seqlens_q.data != nullptr) {
    zero_unused(p.dq, batch_q, at.head_idx, s.row_q + s.len_q, s.row_q + s.slots_q, p.inputs.head_dim_qk, at.tile,
                p.tiles_q);
  }
  const int32_t head_kv = p.sequences.group.quotient(at.head_idx);
  if (head_kv * p.sequences.group.value != at.head_idx) return;
  const bool is_packed = p.sequences.cu_seqlens_kv.data != nullptr;
  int32_t first = 0, end = p.sequences.seqlen_kv;
  if (is_packed) {
    first = clamp(entry(p.sequences.cu_seqlens_kv, at.batch_idx), 0, p.sequences.total_kv);
    end = is_rest ? p.sequences.total_kv
                  : clamp(entry(p.sequences.cu_seqlens_kv, at.batch_idx + 1), first, p.sequences.total_kv);
  } else if (is_rest) {
    return;
  }
  const int32_t begin_used = is_rest ? end : s.row_kv, end_used = is_rest ? end : s.row_kv + s.len_kv;
  const int32_t batch_kv = is_packed ? 0 : at.batch_idx;
  const auto zero = [&](const GradientParams& to, int32_t head_dim) {
    zero_unused(to, batch_kv, head_kv, first, begin_used, head_dim, at.tile, p.tiles_q);
    zero_unused(to, batch_kv, head_kv, end_used, end, head_dim, at.tile, p.tiles_q);
  };
  zero(p.dk, p.inputs.head_dim_qk);
  zero(p.dv, p.inputs.head_dim_v);
}

// Dot products of rows of d_out and out, whose loads wait for memory together. Eight lanes compute each, over some of
// the columns.
template <Element E, int Rows>
__device__ __forceinline__ void dot_out(const BackwardParams& p, const int64_t (&d_out)[Rows],
                                        const int64_t (&out)[Rows], int lane, float (&dots)[Rows]) {
  const auto add = [&]<int N>(int32_t column) {
    float of_d_out[Rows][N], of_out[Rows][N];
    const auto load = [&]<Element Of>(const void* from, const int64_t(&rows)[Rows], float(&values)[Rows][N]) {
#pragma unroll
      for (int i = 0; i < Rows; ++i) load_piece<Of>(from, rows[i] + column, values[i]);
    };
    load.template operator()<E>(p.d_out.data, d_out, of_d_out);
    if (E == Element::f32 || p.output.out_element == Element::f32) {
      load.template operator()<Element::f32>(p.output.out.data, out, of_out);
    } else {
      load.template operator()<E>(p.output.out.data, out, of_out);
    }
#pragma unroll
    for (int i = 0; i < Rows; ++i) {
#pragma unroll
      for (int c = 0; c < N; ++c) dots[i] = __fmaf_rn(of_d_out[i][c], of_out[i][c], dots[i]);
    }
  };
#pragma unroll
  for (int i = 0; i < Rows; ++i) dots[i] = 0;
  if (p.rows_are_aligned) {
    constexpr int kPiece = 16 / portable::size_bytes(E);
    for (int32_t column = lane * kPiece; column < p.inputs.head_dim_v; column += 8 * kPiece) {
      add.template operator()<kPiece>(column);
    }
  } else {
    for (int32_t column = lane; column < p.inputs.head_dim_v; column += 8) add.template operator()<1>(column);
  }
#pragma unroll
  for (int i = 0; i < Rows; ++i) {
#pragma unroll
    for (int lanes = 4; lanes > 0; lanes /= 2) dots[i] += __shfl_xor_sync(kAllLanes, dots[i], lanes);
  }
}

// True if the lane's query sees a key, which LSE does not say where there is a sink. Of eight lanes the first `Rows`
// have a query.
template <BackwardSm80Config C, int Rows>
__device__ __forceinline__ bool sees_key(const BackwardParams& p, const BandedSequence<int64_t>& s, const RowTile& at,
                                         int32_t query) {
  if (p.scores.sink.data == nullptr) return true;
  if constexpr (num_masks(C.score) == 0) return has_keys(row_keys(s, query), p.masks.keep_first);
  const uint8_t* classes = tile_classes(p.tile_map, at.batch_idx, at.head_idx, at.tile);
  bool sees = false;
#pragma unroll 1
  for (int lane = 0; lane < 32; ++lane) {
    if (lane % 8 >= Rows) continue;
    const int32_t of_lane = __shfl_sync(kAllLanes, query, lane);
    const bool is_seen = sees_element<C.score, C.tile_kv>(p.masks, p.arrays, s, at.batch_idx, at.head_idx, of_lane,
                                                          row_keys(s, of_lane), classes);
    if (static_cast<int>(threadIdx.x % 32) == lane) sees = is_seen;
  }
  return sees;
}

// Blocks a multiprocessor: loads of many rows at once hide the latency of memory. f32 and element masks need more
// registers than four leave.
constexpr int row_blocks(Element element, portable::MaskLevel mask) {
  return element == Element::f32 || mask == portable::MaskLevel::bits ? 2 : 4;
}

// Writes what the next step reads: the data of query rows and tiles, the key tile that adds to each tile's dQ first, a
// ticket counter of 0, and zeros in rows of gradients that belong to no query or key.
template <BackwardSm80Config C>
__global__ void __launch_bounds__(kBackwardRowThreads, row_blocks(C.score.elements.q, C.score.mask))
    backward_rows(const __grid_constant__ BackwardParams p) {
  using Head = typename BlockBackward<C>::Head;
  const RowTile at(p);
  if (blockIdx.x == 0 && threadIdx.x == 0) *p.ticket = 0;
  const BandedSequence<int64_t> s = sequence(p.sequences, p.masks, at.batch_idx);
  zero_all_unused(p, s, at);
  const int32_t first = at.tile * C.tile_q;
  if (at.batch_idx == p.sequences.batch || first >= s.len_q) return;
  const Head head(p, s, at.batch_idx, at.head_idx);
  if (!C.in_order && p.dq.tensor.data != nullptr) {
    constexpr int kSums = C.tile_q * C.head_dim_qk;
    auto* sums = reinterpret_cast<uint4*>(p.dq_sums + (head.first + at.tile) * kSums);
    for (auto i = static_cast<int>(threadIdx.x); i < kSums / 4; i += kBackwardRowThreads) sums[i] = {0, 0, 0, 0};
  }
  const auto lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);

  // Eight lanes share kRows rows, kRowsAtOnce apart. They compute the dot products of four at a time, as eight would
  // spill. Then each lane finishes a row of its own.
  constexpr int kRowsAtOnce = kBackwardRowThreads / 8, kRows = C.tile_q / kRowsAtOnce;
  constexpr int kTogether = kRows < 4 ? kRows : 4;
  static_assert(C.tile_q % kRowsAtOnce == 0 && kRows <= 8 && kRows % kTogether == 0);
  const int first_of_lanes = warp * 4 + lane / 8;
  const auto query_of = [&](int i) { return min(first + i, s.len_q - 1); };
  const auto offset = [&](const portable::OperandParams& t, int32_t query) {
    return at.batch_idx * t.batch_stride + at.head_idx * t.head_stride + (s.row_q + query) * t.row_stride;
  };
  float dot = 0;
#pragma unroll 1
  for (int begin = 0; begin < kRows; begin += kTogether) {
    int64_t of_d_out[kTogether], of_out[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int32_t query = query_of(first_of_lanes + (begin + i) * kRowsAtOnce);
      of_d_out[i] = offset(p.d_out, query), of_out[i] = offset(p.output.out, query);
    }
    float dots[kTogether];
    dot_out<C.score.elements.q>(p, of_d_out, of_out, lane % 8, dots);
#pragma unroll
    for (int i = 0; i < kTogether; ++i) dot = lane % 8 == begin + i ? dots[i] : dot;
  }

  QueryTile tile = {0x7FFFFFFF, 0x7FFFFFFF, 0, 0};
  const int row_idx = first_of_lanes + lane % 8 * kRowsAtOnce;
  const int32_t query = query_of(row_idx);
  const bool sees = sees_key<C, kRows>(p, s, at, query);
  if (lane % 8 < kRows) {
    BackwardRow row = {0, 0, 0, 0};
    const float lse = static_cast<const float*>(p.output.lse.data)[offset(p.output.lse, query)];
    if (first + row_idx < s.len_q && lse != -kInfinity) {
      const KeyRange keys = sees ? row_keys(s, query) : KeyRange{0, 0};
      const float d_lse =
          p.d_lse.data == nullptr ? 0.0f : static_cast<const float*>(p.d_lse.data)[offset(p.d_lse, query)];
      // An LSE of infinity becomes NaN, and so do its products, as the forward's out is NaN.
      row = {lse == kInfinity ? lse - lse : lse, (sees ? dot : 0.0f) - d_lse, keys.begin, keys.end};
    }
    portable::BackwardRowPair& pair = p.rows[((head.first + at.tile) * C.tile_q + row_idx) / 2];
    pair.lse[row_idx % 2] = row.lse;
    pair.delta[row_idx % 2] = row.delta;
    pair.keys[row_idx % 2] = {row.begin, row.end};
    tile = {row.end > 0 ? row.begin : 0x7FFFFFFF, row.end, row.begin, row.end};
  }
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    tile.smallest_begin = min(tile.smallest_begin, __shfl_xor_sync(kAllLanes, tile.smallest_begin, lanes));
    tile.smallest_end = min(tile.smallest_end, __shfl_xor_sync(kAllLanes, tile.smallest_end, lanes));
    tile.largest_begin = max(tile.largest_begin, __shfl_xor_sync(kAllLanes, tile.largest_begin, lanes));
    tile.largest_end = max(tile.largest_end, __shfl_xor_sync(kAllLanes, tile.largest_end, lanes));
  }
  auto* of_warps = reinterpret_cast<QueryTile*>(ptx::dynamic_shared());
  if (lane == 0) of_warps[warp] = tile;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < kBackwardRowThreads / 32; ++i) {
    const QueryTile other = of_warps[i];
    tile.smallest_begin = min(tile.smallest_begin, other.smallest_begin);
    tile.smallest_end = min(tile.smallest_end, other.smallest_end);
    tile.largest_begin = max(tile.largest_begin, other.largest_begin);
    tile.largest_end = max(tile.largest_end, other.largest_end);
  }
  tile.smallest_begin = min(tile.smallest_begin, tile.largest_end);
  p.tiles[head.first + at.tile] = tile;
  p.turns[head.first + at.tile] =
      !C.in_order
          ? portable::kHasSums
          : static_cast<uint32_t>(head.next_key_tile(at.tile, key_tiles<C.tile_kv>(tile, p.masks.keep_first), 0));
}

// Writes dQ of a query tile: scale times its sums, which are stored in the layout of the accumulators, or 0 if no key
// was seen.
template <BackwardSm80Config C>
__global__ void __launch_bounds__(C.num_warps * 32) backward_dq(const __grid_constant__ BackwardParams p) {
  using Block = BlockBackward<C>;
  using Fragment = typename Block::FragmentDQ;
  const RowTile at(p);
  if (at.batch_idx == p.sequences.batch) return;
  const BandedSequence<int64_t> s = sequence(p.sequences, p.masks, at.batch_idx);
  const int32_t first = at.tile * C.tile_q;
  if (first >= s.len_q) return;
  const int64_t tile = typename Block::Head(p, s, at.batch_idx, at.head_idx).first + at.tile;
  const auto thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  if (!Fragment::has(warp)) return;
  const bool has_sums = (p.turns[tile] & portable::kHasSums) != 0;
  const float* from = p.dq_sums + tile * (C.tile_q * C.head_dim_qk) + thread;
  const int64_t head = at.batch_idx * p.dq.tensor.batch_stride + at.head_idx * p.dq.tensor.head_stride;
#pragma unroll 4
  for (int block = 0; block < Fragment::kMBlocks * Fragment::kBlocks; ++block) {
    float dq[1][1][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) dq[0][0][i] = has_sums ? from[(block * 4 + i) * Fragment::kThreads] : 0.0f;
    store_gradients<C.score.elements.q>(
        p.dq, dq, p.scores.scale, first + Fragment::row(warp) + block / Fragment::kBlocks * 16, s.len_q,
        Fragment::column(warp) + block % Fragment::kBlocks * 8, p.inputs.head_dim_qk, thread % 32,
        [&](int32_t row) { return head + (s.row_q + row) * p.dq.tensor.row_stride; });
  }
}

// Sums over all threads. Thread 0 gets the result.
__device__ __forceinline__ double block_sum(double value) {
  auto* sums = reinterpret_cast<double*>(ptx::dynamic_shared());
  sums[threadIdx.x] = value;
  __syncthreads();
#pragma unroll 1
  for (unsigned half = kBackwardRowThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  const double sum = sums[0];
  __syncthreads();
  return sum;
}

// d_sink and d_alibi_slopes: one block a head, for each sequence or summed over all of them in order.
template <BackwardSm80Config C>
__global__ void __launch_bounds__(kBackwardRowThreads) backward_heads(const __grid_constant__ BackwardParams p) {
  using Head = typename BlockBackward<C>::Head;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t head_idx = static_cast<int32_t>(blockIdx.x) % p.sequences.heads_q.value;
  const int32_t entry = static_cast<int32_t>(blockIdx.x) / p.sequences.heads_q.value;
  const auto sum_up = [&](const portable::HeadGradientParams& to, const auto& of_sequence) {
    const bool of_all = to.batch_stride == 0;
    if (to.data == nullptr || (of_all && entry > 0)) return;
    double sum = 0;
    for (int32_t b = of_all ? 0 : entry; b < (of_all ? p.sequences.batch : entry + 1); ++b) {
      const BandedSequence<int64_t> s = sequence(p.sequences, p.masks, b);
      sum += of_sequence(s, b);
    }
    sum = block_sum(sum);
    if (thread != 0) return;
    float* at = to.data + entry * to.batch_stride + head_idx * to.stride;
    *at = static_cast<float>((to.accumulates ? *at : 0.0f) + sum);
  };
  // Sum over queries: -e^(sink - lse) delta.
  sum_up(p.d_sink, [&](const Sequence& s, int32_t b) {
    const float sink = static_cast<const float*>(p.scores.sink.data)[head_idx * p.scores.sink.stride];
    const portable::BackwardRowPair* rows = p.rows + Head(p, s, b, head_idx).first * (C.tile_q / 2);
    double sum = 0;
    for (int32_t i = thread; i < s.len_q; i += kBackwardRowThreads) {
      const float lse = rows[i / 2].lse[i % 2], delta = rows[i / 2].delta[i % 2];
      if (delta != 0) sum -= exp(static_cast<double>(sink) - static_cast<double>(lse)) * static_cast<double>(delta);
    }
    return sum;
  });
  // Sum over key tiles, or query tiles.
  sum_up(p.d_alibi_slopes, [&](const Sequence& s, int32_t b) {
    const float* sums = p.slope_sums + (static_cast<int64_t>(b) * p.sequences.heads_q.value + head_idx) * p.slope_tiles;
    constexpr int32_t kTile = C.slope_tile_q > 0 ? C.slope_tile_q : C.tile_kv;
    const int32_t length = C.slope_tile_q > 0 ? s.len_q : s.len_kv;
    double sum = 0;
    for (int32_t i = thread; i * kTile < length; i += kBackwardRowThreads) sum += static_cast<double>(sums[i]);
    return sum;
  });
}

}  // namespace tessella::device
