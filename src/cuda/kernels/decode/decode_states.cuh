// The state of a softmax over some keys, and how states merge: those of a block's warps, of a cluster's blocks, and of
// a unit's clusters. They merge in a fixed order, so that bits do not depend on which one ends first.
#pragma once

#include "cuda/device/ptx/barrier.cuh"
#include "cuda/device/ptx/cluster.cuh"
#include "cuda/device/ptx/global.cuh"
#include "cuda/device/tile/piece.cuh"
#include "cuda/kernels/decode/block_decode.cuh"

namespace tessella::device {

// An unfinished softmax: o is unscaled and relative to the maximum.
struct State {
  float max = -kInfinity, sum = 0;
  float o[4] = {0, 0, 0, 0};
};

template <DecodeConfig C>
struct DecodeStates : BlockDecode<C> {
  using Block = BlockDecode<C>;
  using Block::Block;
  using Block::p, Block::shared, Block::base, Block::thread, Block::lane, Block::warp, Block::rank, Block::kAt,
      Block::kThreads, Block::kBlocks, Block::kScoreBlocks, Block::kPieces, Block::kGroupWarps, Block::kGroupTiles,
      Block::kTiles, Block::kGroups, Block::kOwnPieces, Block::kQuads, Block::E, Block::tops, Block::maxima,
      Block::staged_out, Block::group, Block::tile, Block::first_of_group, Block::row_anew, Block::score_row_anew,
      Block::scale, Block::scale_log2, Block::kHasPower, Block::offset, Block::element_of, Block::head_of,
      Block::barrier;
  using typename Block::Rows, typename Block::Sums;

  __device__ __forceinline__ static float sum_of_keys(float x) {
    x += __shfl_xor_sync(kAllLanes, x, 4);
    x += __shfl_xor_sync(kAllLanes, x, 8);
    return x + __shfl_xor_sync(kAllLanes, x, 16);
  }

  // Writes the block's state to shared memory, where a thread finds four columns of a row in one chunk.
  __device__ __forceinline__ void stage_state(const Rows& rows, const Sums& o) const {
#pragma unroll
    for (int n = 0; n < kScoreBlocks; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float sum = sum_of_keys(rows.sum[n][c]);
        if (lane >= 4) continue;
        tops()[tile() * C.rows + score_row_anew(n, c)] = sum;
        if (tile() == first_of_group()) {
          maxima()[group() * C.rows + score_row_anew(n, c)] = rows.max[n][c];
        }
      }
    }
    __syncthreads();  // all warps are done with values, whose memory the rows take
#pragma unroll
    for (int piece = 0; piece < kOwnPieces; ++piece) {
      const int own = piece * kGroupWarps + warp % kGroupWarps;
      if (kPieces % kGroupWarps != 0 && own >= kPieces) continue;
#pragma unroll
      for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          staged_out(group())[row_anew(n, i % 2) * portable::out_pitch(C) + value_column<Block::kCache>(own, lane, i)] =
              kHasPower ? o[piece][n][i] * rows.power : o[piece][n][i];
        }
      }
    }
    __syncthreads();
  }
  // Merges `count` states in order. sums_of(i): maximum and sum; load(i, o). It loads kAtOnce states at a time.
  template <class SumsOf, class Load>
  __device__ __forceinline__ State merged(int count, const SumsOf& sums_of, const Load& load) const {
    constexpr int kAtOnce = 8;
    State all;
#pragma unroll 1
    for (int first = 0; first < count; first += kAtOnce) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i < count) all.max = fmaxf(all.max, sums_of(first + i).x);
      }
    }
    const float log2_of_score = scale_log2(), from = offset(all.max);
#pragma unroll 1
    for (int first = 0; first < count; first += kAtOnce) {
      float2 sums[kAtOnce];
      float o[kAtOnce][4];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        sums[i] = make_float2(-kInfinity, 0);
        o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0;
        if (first + i >= count) continue;
        sums[i] = sums_of(first + i);
        load(first + i, o[i]);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const float weight = ptx::exp2((sums[i].x - from) * log2_of_score);
        all.sum = __fmaf_rn(weight, sums[i].y, all.sum);
#pragma unroll
        for (int j = 0; j < 4; ++j) all.o[j] = __fmaf_rn(weight, o[i][j], all.o[j]);
      }
    }
    return all;
  }

  // The block's own state. A quad is four columns of a row.
  __device__ __forceinline__ State staged(int quad) const {
    const int row = quad / kQuads;
    const auto sums_of = [&](int of_group) {
      float sum = 0;
#pragma unroll
      for (int of_tile = 0; of_tile < kGroupTiles; ++of_tile) {
        sum += tops()[(of_group * kGroupTiles + of_tile) * C.rows + row];
      }
      return make_float2(maxima()[of_group * C.rows + row], sum);
    };
    return merged(kGroups, sums_of, [&](int of_group, float(&of)[4]) {
      const float* from = staged_out(of_group) + row * portable::out_pitch(C) + quad % kQuads * 4;
#pragma unroll
      for (int i = 0; i < 4; ++i) of[i] = from[i];
    });
  }

  // What multiplies a row of out whose keys have one v_scale. A row that sees no key stays zero, whatever the scale is.
  __device__ __forceinline__ float out_factor(const DecodeWork& work, float sum) const {
    const portable::CacheScaleParams& of = p.out_factor;
    if (of.data == nullptr || sum == 0) return 1;
    const int32_t batch_idx = p.sequences.cu_seqlens_kv.data != nullptr
                                  ? work.unit.batch_idx
                                  : batch_of_keys(p.sequences, work.unit.batch_idx);
    return static_cast<const float*>(of.data)[batch_idx * of.batch_stride + work.unit.head_kv * of.head_stride];
  }

  // Writes four columns of a row of out, and the row's lse beside the first of them.
  __device__ __forceinline__ void write(const DecodeWork& work, int quad, const State& state) const {
    const int row = quad / kQuads, column = quad % kQuads * 4;
    if (row >= work.num_rows || column >= p.inputs.head_dim_v) return;
    const portable::OutputParams& to = p.output;
    const portable::TableParams& sinks = p.scores.sink;
    const bool has_sink = sinks.data != nullptr;
    const float sink = has_sink ? static_cast<const float*>(sinks.data)[head_of(work, row) * sinks.stride] : 0.0f;
    const RowResult result = finish(state.max, state.sum, scale(), has_sink, sink);
    if (column == 0 && to.lse.data != nullptr)
      static_cast<float*>(to.lse.data)[element_of(to.lse, work, row)] = result.lse;
    float values[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = state.o[i] * result.factor;
    if constexpr (portable::is_quantized(C)) {
      const float factor = out_factor(work, state.sum);
#pragma unroll
      for (int i = 0; i < 4; ++i) values[i] *= factor;
    }
    const int64_t at = element_of(to.out, work, row) + column;
    const auto store = [&]<Element Out>() {
      if (to.out_vector_store) return store_piece<Out>(to.out.data, at, values);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float value[1] = {values[i]};
        if (column + i < p.inputs.head_dim_v) store_piece<Out>(to.out.data, at + i, value);
      }
    };
    if (E == Element::f32 || to.out_element == Element::f32) {
      store.template operator()<Element::f32>();
    } else {
      store.template operator()<E>();
    }
  }

  __device__ __forceinline__ float* partial(const DecodeWork& work, int split_idx, int quad) const {
    return p.partial + (int64_t{work.split.slot_of(split_idx)} * p.rows * kQuads + quad) * 4;
  }
  __device__ __forceinline__ float* partial_sums(const DecodeWork& work, int split_idx, int row) const {
    return p.partial_sums + (int64_t{work.split.slot_of(split_idx)} * p.rows + row) * 2;
  }

  // Writes the state of a quad to memory for the unit's last cluster.
  __device__ __forceinline__ void leave(const DecodeWork& work, int first, int quad, const State& state) const {
    ptx::store_to_memory(partial(work, work.split.idx, quad), state.o);
    if (quad != first && quad % kQuads != 0) return;
    const float sums[2] = {state.max, state.sum};  // of a row that several blocks have, each leaves the same
    ptx::store_to_memory(partial_sums(work, work.split.idx, quad / kQuads), sums);
  }
  // True if all other clusters of the unit have written theirs.
  __device__ __forceinline__ bool is_last(const DecodeWork& work) const {
    uint32_t* vote = reinterpret_cast<uint32_t*>(shared + kAt.barrier + 8);
    __syncthreads();
    if (thread == 0) {
      ptx::fence_memory();
      *vote = ptx::is_last_arrival(p.arrived + work.unit.idx * p.cluster + rank, work.split.of) ? 1 : 0;
      if (*vote != 0) ptx::fence_memory();
    }
    __syncthreads();
    return *vote != 0;
  }
  __device__ __forceinline__ State state_of_splits(const DecodeWork& work, int quad) const {
    const auto sums_of = [&](int split_idx) {
      float sums[2];
      ptx::load_from_memory(sums, partial_sums(work, split_idx, quad / kQuads));
      return make_float2(sums[0], sums[1]);
    };
    return merged(work.split.of, sums_of,
                  [&](int split_idx, float(&o)[4]) { ptx::load_from_memory(o, partial(work, split_idx, quad)); });
  }

  // Quads of a block's slice: each block of a cluster merges one slice from the states of all blocks.
  __device__ __forceinline__ int slice_quads() const { return p.slice.value; }
  __device__ __forceinline__ int num_quads() const { return p.rows * kQuads; }
  __device__ uint32_t received(int from, int i) const { return base + kAt.received + (from * slice_quads() + i) * 16; }
  __device__ uint32_t received_sums(int from, int row) const {
    return base + kAt.received + p.cluster * slice_quads() * 16 + (from * p.rows + row) * 8;
  }
  __device__ __forceinline__ void send_state() const {
#pragma unroll 1
    for (int quad = thread; quad < num_quads(); quad += kThreads) {
      const int to = p.slice.quotient(quad);
      const State state = staged(quad);
      ptx::send(ptx::address_in(to, received(rank, quad - to * slice_quads())), state.o,
                ptx::address_in(to, barrier()));
    }
#pragma unroll 1
    for (int i = thread; i < p.rows * p.cluster; i += kThreads) {
      const int to = i % p.cluster, row = i / p.cluster;
      const State state = staged(row * kQuads);
      const float sums[2] = {state.max, state.sum};
      ptx::send(ptx::address_in(to, received_sums(rank, row)), sums, ptx::address_in(to, barrier()));
    }
  }
  __device__ __forceinline__ State state_of_cluster(int first, int quad) const {
    const auto sums_of = [&](int from) {
      const uint2 words = ptx::load_words(received_sums(from, quad / kQuads));
      return make_float2(__uint_as_float(words.x), __uint_as_float(words.y));
    };
    return merged(p.cluster, sums_of, [&](int from, float(&of_block)[4]) {
      const uint4 words = ptx::load_chunk(received(from, quad - first));
      of_block[0] = __uint_as_float(words.x), of_block[1] = __uint_as_float(words.y);
      of_block[2] = __uint_as_float(words.z), of_block[3] = __uint_as_float(words.w);
    });
  }
  // The same, read from where all blocks have staged their states: rows of v_in_k are too long to send.
  __device__ __forceinline__ State staged_of_cluster(int quad) const {
    const int row = quad / kQuads;
    const auto at = [&](int from, const void* here) {
      return ptx::address_in(from, base + static_cast<uint32_t>(static_cast<const char*>(here) - shared));
    };
    const auto sums_of = [&](int from) {
      float sum = 0;
#pragma unroll
      for (int of_tile = 0; of_tile < kTiles; ++of_tile) {
        sum += ptx::load_float_in(at(from, tops() + of_tile * C.rows + row));
      }
      return make_float2(ptx::load_float_in(at(from, maxima() + row)), sum);
    };
    return merged(p.cluster, sums_of, [&](int from, float(&of_block)[4]) {
      ptx::load_floats_in(of_block, at(from, staged_out(0) + row * portable::out_pitch(C) + quad % kQuads * 4));
    });
  }
};

}  // namespace tessella::device
