// A block of the backward kernels: tiles of keys, tiles of queries, and P and dX where they meet.
//
// Scores are transposed: S^T = K Q^T, so that P^T and dX^T lie in shared memory as the products dV += P^T dO and
// dK += dX^T Q read them, row by row, and dQ = dX K reads dX^T by transposing loads.
#pragma once

#include "cuda/device/schedule/query_tiles.cuh"
#include "cuda/device/score/gradient_tile.cuh"
#include "cuda/device/tile/tile.cuh"
#include "cuda/kernels/backward_sm80/multiply_shared.cuh"

namespace tessella::device {

using portable::BackwardSm80Config;

template <BackwardSm80Config C>
struct BlockBackward {
  static_assert(portable::are_one(C.score.elements));
  static constexpr Element kElement = C.score.elements.q;
  static constexpr int kElementBytes = portable::size_bytes(kElement);
  static constexpr int kThreads = C.num_warps * 32;
  static constexpr bool kHasMap = C.score.mask == MaskLevel::bits;
  static constexpr portable::BackwardLayout kLayout = portable::layout(C);
  using TileK = Tile<C.tile_kv, C.head_dim_qk, kElementBytes>;
  using TileV = Tile<C.tile_kv, C.head_dim_v, kElementBytes>;
  using TileQ = Tile<C.tile_q, C.head_dim_qk, kElementBytes>;
  using TileDOut = Tile<C.tile_q, C.head_dim_v, kElementBytes>;
  using TileP = Tile<C.tile_kv, C.tile_q, kElementBytes>;  // rows are keys
  using FragmentS = WarpFragment<C.tile_kv, C.tile_q, C.num_warps>;
  using FragmentDK = WarpFragment<C.tile_kv, C.head_dim_qk, C.num_warps>;
  using FragmentDV = WarpFragment<C.tile_kv, C.head_dim_v, C.num_warps>;
  using FragmentDQ = WarpFragment<C.tile_q, C.head_dim_qk, C.num_warps>;
  using Gradient = ScoreGradient<C.score>;
  using Visited = VisitedQueryTiles<C.tile_q, C.tile_kv, kHasMap>;
  using Head = typename Visited::Head;
  static constexpr int kVisitsAt = 64;  // words before: whose turn, sums of warps, keys that are seen
  static_assert(C.num_warps * portable::kSeenWords <= kVisitsAt &&
                kVisitsAt + Visited::kWords <= portable::kBackwardWords && C.tile_kv <= 32 * portable::kSeenWords);
  static_assert(C.tile_q <= 128, "tiles begin at their multiples, as portable::tile_queries() has them");

  const BackwardParams& p;
  uint32_t shared;
  int32_t thread = 0, lane = 0, warp = 0;
  // Set by the kernel.
  BandedSequence<int64_t> sequence;
  int32_t batch_idx = 0, head_kv = 0;
  int32_t first_key = 0;  // of the tile, as the sequence's; negative before its first one

  __device__ __forceinline__ BlockBackward(const BackwardParams& params, uint32_t address)
      : p(params), shared(address) {
    find_thread();
  }
  // Computes the thread's indices again, so that addresses derived from the earlier ones hold no registers.
  __device__ __forceinline__ void find_thread() {
    thread = static_cast<int32_t>(threadIdx.x);
    ptx::forget(thread);
    lane = thread % 32;
    warp = thread / 32;
  }

  __device__ uint32_t s_k() const { return shared; }
  __device__ uint32_t s_v() const { return shared + kLayout.v_at; }
  __device__ uint32_t s_q(int stage) const { return shared + kLayout.stages_at + stage * kLayout.stage_bytes; }
  __device__ uint32_t s_d_out(int stage) const { return s_q(stage) + kLayout.d_out_at; }
  __device__ uint32_t s_rows(int stage) const { return s_q(stage) + kLayout.rows_at; }
  __device__ uint32_t s_probs() const { return shared + kLayout.probs_at; }
  __device__ uint32_t s_d_products() const { return shared + kLayout.d_products_at; }
  __device__ uint32_t s_word(int i) const { return shared + kLayout.words_at + i * 4; }

  __device__ Head head(int32_t head_idx) const { return {p, sequence, batch_idx, head_idx}; }

  // The first element of row `from` of a head, in a tensor of the batch.
  __device__ static HeadRows<false> head_rows(const portable::OperandParams& t, int32_t batch_idx, int32_t head_idx,
                                              int32_t row) {
    const int64_t at = batch_idx * t.batch_stride + head_idx * t.head_stride + row * t.row_stride;
    return {static_cast<const char*>(t.data) + at * kElementBytes, t.row_stride * kElementBytes};
  }

  template <class Tile, int Rows, class IsThere>
  __device__ __forceinline__ void load_rows(uint32_t to, const HeadRows<false>& rows, int32_t first, int32_t columns,
                                            const IsThere& is_there) const {
    constexpr int kUnroll = 4;
    load_tile<Tile, Rows, kThreads, C.vector_loads, kUnroll>(to, rows, first, columns, static_cast<uint32_t>(thread),
                                                             is_there);
  }

  // Writes zeros for keys that no query of the sequence sees: their memory may hold NaN, and 0 * NaN is NaN.
  __device__ __forceinline__ void load_keys() const {
    load_k();
    load_of_keys<TileV>(s_v(), p.inputs.v, p.inputs.head_dim_v);
  }
  __device__ __forceinline__ void load_k() const { load_of_keys<TileK>(s_k(), p.inputs.k, p.inputs.head_dim_qk); }
  template <class Tile>
  __device__ __forceinline__ void load_of_keys(uint32_t to, const portable::OperandParams& from,
                                               int32_t columns) const {
    const KeyRange first = row_keys(sequence, 0), last = row_keys(sequence, sequence.len_q - 1);
    const auto is_seen = [&](int32_t key) {
      return key >= 0 && key < last.end && (key >= first.begin || key < p.masks.keep_first);
    };
    load_rows<Tile, C.tile_kv>(to, head_rows(from, batch_idx, head_kv, sequence.row_kv), first_key, columns, is_seen);
  }
  // Every thread calls it, after a barrier.
  __device__ __forceinline__ void prepare_keys() const {
    if constexpr (kElement == Element::f32) prepare_q<kElement, TileK, kThreads>(s_k(), thread, false);
  }

  __device__ __forceinline__ void load_queries(int32_t head_idx, int32_t tile, int stage) const {
    const int32_t first = tile * C.tile_q;
    const auto is_there = [&](int32_t row) { return row < sequence.len_q; };
    load_rows<TileQ, C.tile_q>(s_q(stage), head_rows(p.inputs.q, batch_idx, head_idx, sequence.row_q), first,
                               p.inputs.head_dim_qk, is_there);
    load_rows<TileDOut, C.tile_q>(s_d_out(stage), head_rows(p.d_out, batch_idx, head_idx, sequence.row_q), first,
                                  p.inputs.head_dim_v, is_there);
    const auto* rows = reinterpret_cast<const uint4*>(p.rows + (head(head_idx).first + tile) * (C.tile_q / 2));
    for (int chunk = thread; chunk < C.tile_q; chunk += kThreads) {
      ptx::copy_chunk_async(s_rows(stage) + chunk * 16, rows + chunk, true);
    }
  }
  // A whole warp calls it.
  template <class Tile>
  __device__ __forceinline__ void clear_row(uint32_t tile, int row) const {
    for (int chunk = lane; chunk < Tile::kChunks; chunk += 32) {
      ptx::store_chunk(tile + Tile::offset(row, chunk), {0, 0, 0, 0});
    }
  }
  // Writes zeros for idle rows: their memory may hold NaN.
  __device__ __forceinline__ void clear_idle_queries(int stage) const {
    for (int i = warp; i < C.tile_q; i += C.num_warps) {
      if (load_row_keys(s_rows(stage), i).end > 0) continue;
      clear_row<TileQ>(s_q(stage), i);
      clear_row<TileDOut>(s_d_out(stage), i);
    }
    __syncthreads();
  }

  // Computes S^T (with the sign of scale, without its magnitude) and dP^T.
  __device__ __forceinline__ void multiply(typename FragmentS::Accumulators& products,
                                           typename FragmentS::Accumulators& d_probs, int stage) const {
    constexpr int kAhead = 1;
    const int row = FragmentS::row(warp), column = FragmentS::column(warp);
    const uint32_t q = TileQ::advance(s_q(stage), column, 0), d_out = TileDOut::advance(s_d_out(stage), column, 0);
    multiply_qk<kElement, C.head_dim_qk, TileK, TileQ, kAhead>(products, s_k(), q, row, lane, [] {});
    if (p.scores.scale < 0) {
#pragma unroll
      for (int m = 0; m < FragmentS::kMBlocks; ++m) {
#pragma unroll
        for (int j = 0; j < FragmentS::kBlocks; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) products[m][j][i] = -products[m][j][i];
        }
      }
    }
    multiply_qk<kElement, C.head_dim_v, TileV, TileDOut, kAhead>(d_probs, s_v(), d_out, row, lane, [] {});
  }

  // Calls GradientTile::for_each_pair() on the warp's scores of a tile.
  template <bool IsMasked, bool AnyKey = false, class Use>
  __device__ __forceinline__ void gradients(const typename FragmentS::Accumulators& products,
                                            const typename FragmentS::Accumulators& d_probs, const Gradient& gradient,
                                            int32_t head_idx, int32_t tile, bool has_elements, int stage,
                                            const Use& use) const {
    const int32_t column = FragmentS::column(warp);
    const GradientTile<C.score, FragmentS::kMBlocks, FragmentS::kBlocks> of = {p,
                                                                               sequence,
                                                                               batch_idx,
                                                                               head_idx,
                                                                               tile * C.tile_q + column,
                                                                               first_key + FragmentS::row(warp),
                                                                               s_rows(stage) + column * 16,
                                                                               has_elements,
                                                                               lane};
    of.template for_each_pair<IsMasked, AnyKey>(products, d_probs, gradient, use);
  }
};

}  // namespace tessella::device
