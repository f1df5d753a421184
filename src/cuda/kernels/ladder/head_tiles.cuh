// The building blocks of the ladder's kernels: one head of one sequence, its tiles in shared memory, the masked scores
// of a query tile and a key tile, and the rows of out. Nothing overlaps here, because the ladder compares the order of
// loops.
#pragma once

#include "cuda/device/ptx/order.cuh"
#include "cuda/device/score/dropout.cuh"
#include "cuda/device/score/mask.cuh"
#include "cuda/device/score/score.cuh"
#include "cuda/device/score/softmax.cuh"
#include "cuda/device/tile/multiply.cuh"
#include "cuda/device/tile/sequence.cuh"
#include "cuda/device/tile/tile.cuh"
#include "cuda/device/tile/warp_tiles.cuh"
#include "cuda/device/tile/work_tile.cuh"
#include "cuda/kernels/ladder/params.cuh"

namespace tessella::device {

using portable::ForwardParams;
using portable::LadderConfig;
using portable::LadderParams;
using portable::MaskLevel;

template <LadderConfig C>
struct HeadTiles : WarpTiles<C> {
  using Tiles = WarpTiles<C>;
  using Tiles::kElementBytes, Tiles::kThreads, Tiles::kRowsOfWarp, Tiles::kMBlocks, Tiles::kBlocks, Tiles::kBlocksV;
  using typename Tiles::TileQ, typename Tiles::TileK, typename Tiles::TileV, typename Tiles::Scores;
  using Output = float[kMBlocks][kBlocksV][4];

  const ForwardParams& p;
  WorkTile work;  // its tile_idx is the caller's
  BandedSequence<int64_t> sequence;
  uint32_t s_q, s_k, s_v;
  int thread, lane, warp_row;

  __device__ HeadTiles(const ForwardParams& params, const char* shared, const WorkTile& of)
      : p(params), work(of), sequence(device::sequence(params.sequences, params.masks, of.batch_idx)) {
    s_q = ptx::shared_address(shared);
    s_k = s_q + TileQ::kBytes;
    s_v = s_k + TileK::kBytes;
    thread = static_cast<int>(threadIdx.x);
    lane = thread % 32;
    warp_row = thread / 32 * kRowsOfWarp;
  }

  __device__ int64_t head_idx() const { return int64_t{work.batch_idx} * p.sequences.heads_q.value + work.head_idx; }
  // Position in its tile of accumulator row r of block m, and of element i of block j.
  __device__ int32_t row(int m, int r) const { return warp_row + m * 16 + r * 8 + lane / 4; }
  __device__ int32_t column(int j, int i) const { return j * 8 + lane % 4 * 2 + i % 2; }

  // Rows of a head, from the sequence's row 0. first_row: that row's index in the tensor or in the order of pages.
  template <bool Paged>
  __device__ HeadRows<Paged> rows(const portable::OperandParams& t, int32_t batch, int32_t head, int32_t first_row,
                                  int32_t first_column) const {
    const char* first = static_cast<const char*>(t.data) + (head * t.head_stride + first_column) * kElementBytes;
    const int64_t row_bytes = t.row_stride * kElementBytes, batch_bytes = t.batch_stride * kElementBytes;
    if constexpr (Paged) {
      return {p.sequences, first, row_bytes, batch_bytes, work.batch_idx, first_row};
    } else {
      return {first + batch * batch_bytes + first_row * row_bytes, row_bytes};
    }
  }
  template <class Tile, int Rows, bool Paged, class IsThere>
  __device__ void load(uint32_t to, const HeadRows<Paged>& from, int32_t first, int32_t columns,
                       const IsThere& is_there) const {
    load_tile<Tile, Rows, kThreads, C.vector_loads>(to, from, first, columns, thread, is_there);
  }
  __device__ void load_q(int32_t tile) const {
    load<TileQ, C.tile_q>(s_q, rows<false>(p.inputs.q, work.batch_idx, work.head_idx, sequence.row_q, 0),
                          tile * C.tile_q, p.inputs.head_dim_qk, [&](int i) { return i < sequence.len_q; });
  }
  __device__ void load_k(int32_t tile) const {
    load<TileK, C.tile_kv>(
        s_k, rows<C.paged>(p.inputs.k, batch_of_keys(p.sequences, work.batch_idx), head_kv(), sequence.row_kv, 0),
        tile * C.tile_kv, p.inputs.head_dim_qk, [&](int j) { return j < sequence.len_kv; });
  }
  // Loads a tile of v, with zeros for keys that no query of the sequence sees.
  __device__ void load_v(int32_t tile) const {
    const auto begin = static_cast<int32_t>(sequence.band.begin(0));
    const auto end = static_cast<int32_t>(sequence.band.end(sequence.len_q - 1));
    const int32_t first_column = work.slice_idx * C.head_dim_v;
    load<TileV, C.tile_kv>(
        s_v,
        rows<C.paged>(p.inputs.v, batch_of_keys(p.sequences, work.batch_idx), head_kv(), sequence.row_kv, first_column),
        tile * C.tile_kv, min(C.head_dim_v, p.inputs.head_dim_v - first_column),
        [&](int j) { return j < end && (j >= begin || j < p.masks.keep_first); });
  }
  __device__ int32_t head_kv() const { return p.sequences.group.quotient(work.head_idx); }
  // Call it after load_q() and wait(), before scores().
  __device__ void prepare_q() const {
    device::prepare_q<C.score.elements.q, TileQ, kThreads>(s_q, thread, p.scores.scale < 0);
    __syncthreads();
  }
  // Waits until all threads can read the tiles.
  __device__ void wait() const {
    ptx::commit_copies();
    ptx::wait_copies<0>();
    __syncthreads();
  }

  // begin and end: the query's range().
  __device__ bool is_seen(int32_t i, int32_t j, int32_t begin, int32_t end) const {
    if (i >= sequence.len_q || j >= end || (j < begin && j >= p.masks.keep_first)) return false;
    return C.score.mask == MaskLevel::band ||
           is_visible<C.score>(p.masks, p.arrays, sequence, work.batch_idx, work.head_idx, i, j);
  }
  __device__ KeyRange range(int32_t i) const { return row_keys(sequence, i); }
  // Zeroes values of keys that element masks hide from every query of the tile.
  __device__ void clear_unseen_values(int32_t tile_q, int32_t tile_kv) const {
    if constexpr (C.score.mask == MaskLevel::bits) {
      for (int key = thread / 32; key < C.tile_kv; key += C.num_warps) {
        bool seen = false;
        for (int32_t i = tile_q * C.tile_q + lane; i < (tile_q + 1) * C.tile_q; i += 32) {
          seen |= is_seen(i, tile_kv * C.tile_kv + key, range(i).begin, range(i).end);
        }
        if (__any_sync(kAllLanes, seen)) continue;
        for (int chunk = lane; chunk < TileV::kChunks; chunk += 32) {
          ptx::store_chunk(s_v + TileV::offset(key, chunk), {0, 0, 0, 0});
        }
      }
      __syncthreads();
    }
  }

  // Computes scores of the tiles of q and k in shared memory, in natural units; -inf if hidden.
  __device__ void scores(Scores& s, int32_t tile_q, int32_t tile_kv) const {
    if (sequence.len_q == 0 || sequence.len_kv == 0) {  // no row of bias to read, none to compute
#pragma unroll
      for (int m = 0; m < kMBlocks; ++m) {
#pragma unroll
        for (int j = 0; j < kBlocks; ++j) s[m][j][0] = s[m][j][1] = s[m][j][2] = s[m][j][3] = -kInfinity;
      }
      return;
    }
    multiply_qk<C.score.elements.q, C.head_dim_qk, TileQ, TileK>(s, s_q, s_k, warp_row, lane, [] {});
    const Score<C.score> score(p.scores, p.arrays, sequence, work.batch_idx, work.head_idx);
#pragma unroll
    for (int m = 0; m < kMBlocks; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int32_t query = tile_q * C.tile_q + row(m, r);
        const auto [begin, end] = range(query);
        const int32_t first_key = tile_kv * C.tile_kv + column(0, 0);
        const typename Score<C.score>::Origin origin = score.origin(query, first_key);
#pragma unroll
        for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
          for (int i = r * 2; i < r * 2 + 2; ++i) {
            const int32_t column = j * 8 + i % 2;
            const float value = score.natural(s[m][j][i], origin, 0, column);
            s[m][j][i] = is_seen(query, first_key + column, begin, end) ? value : -kInfinity;
          }
          ptx::keep_loads_in_place();
        }
      }
    }
  }

  // The sink is a key without a value. Without a sink no key has been seen yet.
  __device__ float first_maximum() const {
    const portable::TableParams& sink = p.scores.sink;
    return sink.data == nullptr ? -kInfinity : static_cast<const float*>(sink.data)[work.head_idx * sink.stride];
  }
  __device__ float first_sum() const { return first_maximum() == -kInfinity ? 0.0f : 1.0f; }

  __device__ void store_lse(int32_t i, float lse) const {
    const portable::OperandParams& to = p.output.lse;
    if (to.data == nullptr || work.slice_idx != 0 || i >= sequence.len_q) return;
    static_cast<float*>(to.data)[row_offset(to, work, sequence, i)] = lse;
  }
  // Stores columns c and c + 1 of the slice.
  __device__ void store_out(int32_t i, int32_t c, float first, float second) const {
    if (i >= sequence.len_q) return;
    const portable::OperandParams& out = p.output.out;
    const int64_t at = row_offset(out, work, sequence, i);
    const float values[2] = {first, second};
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int32_t of_out = work.slice_idx * C.head_dim_v + c + n;
      if (of_out >= p.inputs.head_dim_v) continue;
      if constexpr (C.score.elements.q != Element::f32) {
        if (p.output.out_element != Element::f32) {
          static_cast<uint16_t*>(out.data)[at + of_out] =
              static_cast<uint16_t>(Multiply<C.score.elements.q>::pack(values[n], 0));
          continue;
        }
      }
      static_cast<float*>(out.data)[at + of_out] = values[n];
    }
  }
};

// e^(from - to) for a maximum `to` of rows that hold `from`; 1 before any key is seen.
__device__ __forceinline__ float weight(float from, float to) {
  return to == -kInfinity ? 1.0f : ptx::exp2((from - to) * kLog2e);
}
__device__ __forceinline__ float log_sum(float max, float sum) {
  return sum == 0 ? -kInfinity : max + ptx::log2(sum) * kLn2;
}

}  // namespace tessella::device
