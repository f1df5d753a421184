// Decoding: attention of few queries on long caches, with the keys split over blocks (Flash-Decoding, Dao et al., 2023)
// and one launch. Any NVIDIA GPU from Ampere on, bf16, f16 and fp32; every cached byte is read once.
//
//   for each part of a unit's keys (schedule/decode_work.hpp):               a cluster of blocks
//     for each of its steps, 16 keys a warp:                                 a block
//       s^T = k q^T -> softcap, ALiBi -> masks                               a warp, its own 16 keys
//       p^T = 2^(s - max)                                                    to shared memory, for all warps
//       o^T += v^T p^T                                                       a warp, its own columns of v
//     blocks send each other their o, max and sum; each merges its slice     st.async, one barrier in shared memory
//     the last cluster of a unit to arrive merges what all have left in memory, in order
//
// Rows of a unit are all queries of a sequence times all heads of a KV head, 8 to 64. One maximum serves all warps of
// a block: a step has one block barrier, at which warps also vote whether some maximum must rise. Only then they
// exchange what it rises to, rescale, and give their probabilities anew. What a row's maximum rises to is found from
// that row alone.
#pragma once

#include "cuda/device/ptx/barrier.hpp"
#include "cuda/device/ptx/cluster.hpp"
#include "cuda/device/ptx/global.hpp"
#include "cuda/device/schedule/decode_work.hpp"
#include "cuda/device/score/score.hpp"
#include "cuda/device/tile/cache_rows.hpp"
#include "cuda/device/tile/piece.hpp"
#include "cuda/device/tile/transposed.hpp"
#include "cuda/device/tile/zero_rows.hpp"

namespace tessella::device {

using portable::DecodeConfig;

// What masks and ALiBi know of a query row.
struct RowInfo {
  int32_t begin, end;  // keys that it sees, beside those of keep_first
  int32_t position;    // its own, counted in keys
  float slope;
};
static_assert(sizeof(RowInfo) == portable::kRowInfoBytes);

// A softmax that is not finished: o unscaled, relative to the maximum.
struct State {
  float max = -kInfinity, sum = 0;
  float o[4] = {0, 0, 0, 0};
};

template <DecodeConfig C>
struct Decode {
  static constexpr portable::DecodeLayout kAt = portable::layout(C);
  static constexpr Element E = C.score.element;
  static constexpr int kThreads = C.num_warps * 32;
  static constexpr int kBlocks = C.rows / 8;
  static constexpr int kPieces = C.head_dim_v / 16;                                // of 16 columns
  static constexpr int kOwnPieces = (kPieces + C.num_warps - 1) / C.num_warps;     // of a warp
  static constexpr int kQuads = C.head_dim_v / 4;
  static constexpr int kStepKeys = portable::step_keys(C);
  static constexpr int kElementBytes = portable::size_bytes(E);
  using TileK = Tile<portable::kDecodeTile, C.head_dim_qk, kElementBytes>;
  using TileV = Tile<portable::kDecodeTile, C.head_dim_v, kElementBytes>;
  using TileQ = Tile<C.rows, C.head_dim_qk, kElementBytes>;
  static constexpr int kSteps = C.head_dim_qk / Multiply<E>::kDepth;
  using Queries = QueryOperands<E, TileQ, kBlocks, kSteps>;
  // Scores are products of q and k until the exponent, or natural ones.
  static constexpr bool kAreProducts = !C.score.softcap && !C.score.alibi;

  const DecodeParams& p;
  char* shared;
  uint32_t base;
  int thread, lane, warp;
  uint32_t phase = 0;  // of the cluster's barrier

  __device__ __forceinline__ explicit Decode(const DecodeParams& params)
      : p(params),
        shared(ptx::dynamic_shared()),
        base(ptx::shared_address(shared)),
        thread(static_cast<int>(threadIdx.x)),
        lane(thread % 32),
        warp(thread / 32) {}

  __device__ int32_t rank() const { return static_cast<int32_t>(blockIdx.x) % p.cluster; }
  __device__ RowInfo* row_infos() const { return reinterpret_cast<RowInfo*>(shared + kAt.row_infos); }
  __device__ uint64_t* drafts() const { return reinterpret_cast<uint64_t*>(shared + kAt.drafts); }
  __device__ float* tops() const { return reinterpret_cast<float*>(shared + kAt.tops); }  // [warp][row]
  __device__ float* maxima() const { return reinterpret_cast<float*>(shared + kAt.maxima); }
  __device__ float* staged_out() const { return reinterpret_cast<float*>(shared + kAt.values); }
  __device__ uint32_t s_keys(int stage) const { return base + kAt.keys + (stage * C.num_warps + warp) * TileK::kBytes; }
  __device__ uint32_t s_values(int stage, int of_warp) const {
    return base + kAt.values + (stage * C.num_warps + of_warp) * TileV::kBytes;
  }
  __device__ uint32_t s_probs(int buffer, int of_warp, int n) const {
    return base + kAt.probs + ((buffer * C.num_warps + of_warp) * kBlocks + n) * portable::probs_bytes(C);
  }
  __device__ uint32_t barrier() const { return base + kAt.barrier; }

  // From what the softmax sees to natural scores. Zero would make 0 * -inf of a hidden key.
  __device__ float scale() const { return kAreProducts ? fmaxf(fabsf(p.forward.scale), 0x1p-126f) : 1.0f; }
  __device__ float scale_log2() const { return scale() * kLog2e; }

  // Of the lane's query rows, two in each block of 8.
  __device__ int row_of(int n, int c) const { return n * 8 + lane % 4 * 2 + c; }

  // ---- before the loop ----

  __device__ __forceinline__ void find_row_infos(const DecodeWork& work) const {
    if (thread >= C.rows) return;
    const int32_t query = work.rows.query(p, thread);
    const int32_t head = (work.rows.first_row + thread) - query * p.forward.group.value;
    const KeyRange keys = row_keys(work.sequence, query);
    RowInfo& info = row_infos()[thread];
    info = {keys.begin, keys.end, query + work.sequence.len_kv - work.sequence.len_q, 0.0f};
    if constexpr (C.score.alibi) {
      const int32_t head_idx = work.unit.head_kv * p.forward.group.value + min(head, p.forward.group.value - 1);
      const portable::TableParams& slopes = p.forward.alibi_slopes;
      info.slope = static_cast<const float*>(slopes.data)[work.unit.batch_idx * slopes.batch_stride +
                                                          head_idx * slopes.stride];
    }
  }

  // Query rows to shared memory, prepared for products; rows and columns that are not there become zeros.
  static constexpr int kQueryChunks = C.rows * TileQ::kChunks;
  static constexpr int kOwnChunks = (kQueryChunks + kThreads - 1) / kThreads;
  struct QueryChunks {
    uint4 chunks[kOwnChunks];
  };
  __device__ __forceinline__ QueryChunks load_queries(const DecodeWork& work) const {
    QueryChunks loaded;
#pragma unroll
    for (int i = 0; i < kOwnChunks; ++i) {
      const int idx = i * kThreads + thread, row = idx / TileQ::kChunks, chunk = idx % TileQ::kChunks;
      loaded.chunks[i] = {0, 0, 0, 0};
      if (row >= work.rows.num_rows || chunk * TileQ::kChunkElements >= p.forward.head_dim_qk) continue;
      const int64_t at = element_of(p.forward.q, work, row) + chunk * TileQ::kChunkElements;
      loaded.chunks[i] = *reinterpret_cast<const uint4*>(static_cast<const char*>(p.forward.q.data) + at * kElementBytes);
    }
    return loaded;
  }
  __device__ __forceinline__ void store_queries(const QueryChunks& loaded) const {
    const bool is_negative = p.forward.scale < 0;
#pragma unroll
    for (int i = 0; i < kOwnChunks; ++i) {
      const int idx = i * kThreads + thread, row = idx / TileQ::kChunks, chunk = idx % TileQ::kChunks;
      if (row >= C.rows) continue;
      const uint4& words = loaded.chunks[i];
      ptx::store_chunk(base + kAt.queries + TileQ::offset(row, chunk),
                       {prepared_q<E>(words.x, is_negative), prepared_q<E>(words.y, is_negative),
                        prepared_q<E>(words.z, is_negative), prepared_q<E>(words.w, is_negative)});
    }
  }

  // First element of a query row in q, out or lse.
  template <class Tensor>
  __device__ __forceinline__ int64_t element_of(const Tensor& tensor, const DecodeWork& work, int row) const {
    const int32_t at = work.rows.first_row + row, query = p.forward.group.quotient(at);
    const int32_t head_idx = work.unit.head_kv * p.forward.group.value + at - query * p.forward.group.value;
    return row_offset(tensor, {work.unit.batch_idx, head_idx, 0, 0}, work.sequence, query);
  }

  // ---- the loop ----

  // The first key of the warp's tile in the round that count() counts as `idx`.
  __device__ __forceinline__ int32_t first_key(const DecodeWork& work, int32_t idx) const {
    return ((work.rounds.at(idx) * p.cluster + rank()) * C.num_warps + warp) * portable::kDecodeTile;
  }

  // Softcap and ALiBi.
  __device__ __forceinline__ void modify(float (&s)[kBlocks][4], int32_t key) const {
    if constexpr (kAreProducts) return;
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& of = s[n][i];
        if constexpr (C.score.softcap) {
          of = p.forward.softcap.cap * tanhf(of * p.forward.softcap.scale);
        } else {
          of *= fabsf(p.forward.scale);
        }
        if constexpr (C.score.alibi) {
          const RowInfo& info = row_infos()[row_of(n, i % 2)];
          of = __fmaf_rn(-info.slope, fabsf(static_cast<float>(info.position - key - i / 2 * 8)), of);
        }
      }
    }
  }

  // Hides keys that a row does not see. key: the lane's first.
  __device__ __forceinline__ void mask(float (&s)[kBlocks][4], int32_t key) const {
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const RowInfo& info = row_infos()[row_of(n, c)];
        const KeyRange keys = {info.begin, info.end};
#pragma unroll
        for (int i = c; i < 4; i += 2) {
          if (!keys.sees(key + i / 2 * 8, p.forward.keep_first)) s[n][i] = -kInfinity;
        }
      }
    }
  }

  // Maxima of the lane's rows, and sums over the keys of this lane.
  struct Rows {
    float max[kBlocks][2], sum[kBlocks][2];
  };
  using Sums = float[kOwnPieces][kBlocks][4];
  static constexpr float kHighestExponent = 14, kSmallestSum = 0x1p-8f;  // with exponents against zero

  __device__ __forceinline__ static float offset(float max) { return max == -kInfinity ? 0.0f : max; }
  __device__ __forceinline__ void exponentiate(const float (&s)[kBlocks][4], const Rows& rows, float scale_log2,
                                               float (&probs)[kBlocks][4], int buffer) const {
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) probs[n][i] = ptx::exp2((s[n][i] - offset(rows.max[n][i % 2])) * scale_log2);
      Transposed<E>::store_probs(s_probs(buffer, warp, n), probs[n], lane);
    }
  }

  // Largest value of the lanes that have the same query rows.
  __device__ __forceinline__ static float max_of_keys(float x) {
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 4));
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 8));
    return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 16));
  }
  __device__ __forceinline__ static float sum_of_keys(float x) {
    x += __shfl_xor_sync(kAllLanes, x, 4);
    x += __shfl_xor_sync(kAllLanes, x, 8);
    return x + __shfl_xor_sync(kAllLanes, x, 16);
  }

  // A maximum that lags behind a step's largest score by more than kLag rises to it.
  __device__ __forceinline__ static bool is_behind(float max, float score, float scale_log2) {
    return (score - max) * scale_log2 > kLag;  // true from -inf on, false for -inf twice
  }
  __device__ __forceinline__ void raise_max(const float (&s)[kBlocks][4], Rows& rows, Sums& o, float scale_log2) const {
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float top = max_of_keys(fmaxf(s[n][c], s[n][c + 2]));
        if (lane < 4) tops()[warp * C.rows + row_of(n, c)] = top;
      }
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float top = -kInfinity;
#pragma unroll
        for (int w = 0; w < C.num_warps; ++w) top = fmaxf(top, tops()[w * C.rows + row_of(n, c)]);
        if (!is_behind(rows.max[n][c], top, scale_log2)) continue;
        const float factor = ptx::exp2((rows.max[n][c] - top) * scale_log2);
        rows.max[n][c] = top;
        rows.sum[n][c] *= factor;
#pragma unroll
        for (int piece = 0; piece < kOwnPieces; ++piece) {
          o[piece][n][c] *= factor;
          o[piece][n][c + 2] *= factor;
        }
      }
    }
  }

  __device__ __forceinline__ void multiply_values(Sums& o, int stage, int buffer) const {
#pragma unroll
    for (int w = 0; w < C.num_warps; ++w) {
      typename Transposed<E>::Probs probs[kBlocks];
#pragma unroll
      for (int n = 0; n < kBlocks; ++n) probs[n] = Transposed<E>::load_probs(s_probs(buffer, w, n), lane);
#pragma unroll
      for (int piece = 0; piece < kOwnPieces; ++piece) {
        const int own = piece * C.num_warps + warp;
        if (kPieces % C.num_warps != 0 && own >= kPieces) continue;
        const typename Transposed<E>::template Values<TileV> values(s_values(stage, w), own, lane);
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) Transposed<E>::template multiply<TileV>(o[piece][n], values, probs[n]);
      }
    }
  }

  // Which keys all query rows of the unit see.
  struct FullKeys {
    int32_t begin, end;
    __device__ bool hold(int32_t tile) const { return tile >= begin && tile + portable::kDecodeTile <= end; }
  };

  // The work's steps of this block: o and sums over its keys, relative to maxima. Unified: relative to zero, and true
  // if some score lies too far above.
  template <bool Unified>
  __device__ __forceinline__ bool attend(const DecodeWork& work, bool waits_for_q, Rows& rows, Sums& o) const {
    QueryChunks chunks;
    if (!waits_for_q) chunks = load_queries(work);  // first: behind the tiles it would come last
    find_row_infos(work);
    const KeyRange first_row = row_keys(work.sequence, work.rows.query(p, 0));
    const KeyRange last_row = row_keys(work.sequence, work.rows.query(p, C.rows));
    const FullKeys full = {last_row.begin, first_row.end};
    const CacheRows cache(p.forward, work, {first_row.begin, last_row.end}, kElementBytes);

    // Keys and values of a step are copied `depth` steps ahead, each as soon as its place is free: keys when this warp
    // has its scores, values when all warps are at the next step's barrier.
    typename CacheRows::Row ahead;
    const auto find = [&](int32_t idx) {
      if (idx < work.end) ahead = cache.find(first_key(work, idx), lane);
    };
    const auto load_keys = [&](int32_t idx) {
      if (idx < work.end) cache.load_keys<TileK>(s_keys((idx - work.begin) % C.depth), ahead, lane);
      ptx::commit_copies();
    };
    const auto load_values = [&](int32_t idx) {
      if (idx < work.end) cache.load_values<TileV>(s_values((idx - work.begin) % (C.depth + 1), warp), ahead, lane);
      ptx::commit_copies();
    };
    constexpr int kLater = 2 * C.depth - 1;  // groups of copies begun after those that a step waits for
#pragma unroll 1
    for (int32_t idx = work.begin; idx < work.begin + C.depth; ++idx) {
      find(idx);
      load_keys(idx);
      load_values(idx);
    }
    find(work.begin + C.depth);
    if (waits_for_q) {
      ptx::wait_for_previous_kernel();
      chunks = load_queries(work);
    }
    store_queries(chunks);
    __syncthreads();
    const Queries queries(base + kAt.queries, lane);

#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        rows.max[n][c] = Unified ? 0.0f : -kInfinity;
        rows.sum[n][c] = 0;
      }
    }
    clear(o);
    const float log2_of_score = scale_log2();
    int stage = 0, stage_v = 0;
    bool is_above = false;
#pragma unroll 1
    for (int32_t idx = work.begin; idx < work.end; ++idx) {
      ptx::wait_copies<kLater>();
      __syncwarp();
      float s[kBlocks][4], probs[kBlocks][4];
      multiply_kq<E, TileK, kSteps>(s, s_keys(stage), queries, lane);
      __syncwarp();  // all lanes have read the keys
      load_keys(idx + C.depth);
      const int32_t tile = first_key(work, idx);
      modify(s, tile + lane / 4);
      if (!full.hold(tile)) mask(s, tile + lane / 4);
      bool is_raised = false;
#pragma unroll
      for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if constexpr (Unified) {
            is_above |= s[n][i] * log2_of_score > kHighestExponent;
          } else {
            is_raised |= is_behind(rows.max[n][i % 2], s[n][i], log2_of_score);
          }
        }
      }
      const int buffer = (idx - work.begin) % 2;
      exponentiate(s, rows, log2_of_score, probs, buffer);
      ptx::wait_copies<kLater>();
      if constexpr (Unified) {
        __syncthreads();
      } else if (__syncthreads_or(is_raised)) {
        raise_max(s, rows, o, log2_of_score);
        exponentiate(s, rows, log2_of_score, probs, buffer);
        __syncthreads();
      }
#pragma unroll
      for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) rows.sum[n][i % 2] += probs[n][i];
      }
      load_values(idx + C.depth);
      find(idx + C.depth + 1);
      multiply_values(o, stage_v, buffer);
      stage = stage + 1 == C.depth ? 0 : stage + 1;
      stage_v = stage_v == C.depth ? 0 : stage_v + 1;
    }
    ptx::wait_copies<0>();
    return is_above;
  }

  // ---- behind the loop ----

  // Exponents against zero serve where probabilities neither overflow (f16) nor vanish: as far as this block sees.
  __device__ __forceinline__ bool sums_are_small(const DecodeWork& work) const {
    if (thread >= work.rows.num_rows || work.begin == work.end) return false;
    const RowInfo& info = row_infos()[thread];
    return info.begin < info.end && !(staged(thread * kQuads).sum >= kSmallestSum);
  }

  // Leaves the block's state in shared memory, where a thread finds four columns of a row side by side.
  __device__ __forceinline__ void stage_state(const Rows& rows, const Sums& o) const {
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float sum = sum_of_keys(rows.sum[n][c]);
        if (lane >= 4) continue;
        tops()[warp * C.rows + row_of(n, c)] = sum;
        if (warp == 0) maxima()[row_of(n, c)] = rows.max[n][c];
      }
    }
    __syncthreads();  // all warps are done with values, whose place the rows take
#pragma unroll
    for (int piece = 0; piece < kOwnPieces; ++piece) {
      const int own = piece * C.num_warps + warp;
      if (kPieces % C.num_warps != 0 && own >= kPieces) continue;
#pragma unroll
      for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          staged_out()[row_of(n, i % 2) * portable::out_pitch(C) + own * 16 + lane / 4 + i / 2 * 8] = o[piece][n][i];
        }
      }
    }
    __syncthreads();
  }
  // An item is four columns of a row.
  __device__ __forceinline__ State staged(int item) const {
    const int row = item / kQuads;
    State state;
    state.max = maxima()[row];
#pragma unroll
    for (int w = 0; w < C.num_warps; ++w) state.sum += tops()[w * C.rows + row];
    const float* from = staged_out() + row * portable::out_pitch(C) + item % kQuads * 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) state.o[i] = from[i];
    return state;
  }

  // Merges `count` states in order. max_of(i), add(i, weight, merged).
  template <class MaxOf, class Add>
  __device__ __forceinline__ State merged(int count, const MaxOf& max_of, const Add& add) const {
    State all;
#pragma unroll 4
    for (int i = 0; i < count; ++i) all.max = fmaxf(all.max, max_of(i));
    const float log2_of_score = scale_log2(), from = offset(all.max);
#pragma unroll 4
    for (int i = 0; i < count; ++i) add(i, ptx::exp2((max_of(i) - from) * log2_of_score), all);
    return all;
  }
  __device__ __forceinline__ static void add_state(State& all, float weight, float sum, const float (&o)[4]) {
    all.sum = __fmaf_rn(weight, sum, all.sum);
#pragma unroll
    for (int i = 0; i < 4; ++i) all.o[i] = __fmaf_rn(weight, o[i], all.o[i]);
  }

  // Four columns of a row of out, and with the first of them the row's lse.
  __device__ __forceinline__ void write(const DecodeWork& work, int item, const State& state) const {
    const int row = item / kQuads, column = item % kQuads * 4;
    if (row >= work.rows.num_rows || column >= p.forward.head_dim_v) return;
    const portable::ForwardParams& f = p.forward;
    const int32_t head_in_group = work.rows.first_row + row - f.group.quotient(work.rows.first_row + row) * f.group.value;
    const bool has_sink = f.sink.data != nullptr;
    const float sink = has_sink ? static_cast<const float*>(
                                      f.sink.data)[(work.unit.head_kv * f.group.value + head_in_group) * f.sink.stride]
                                : 0.0f;
    const RowResult result = finish(state.max, state.sum, scale(), has_sink, sink);
    if (column == 0 && f.lse.data != nullptr) static_cast<float*>(f.lse.data)[element_of(f.lse, work, row)] = result.lse;
    float values[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = state.o[i] * result.factor;
    const int64_t at = element_of(f.out, work, row) + column;
    const auto store = [&]<Element Out>() {
      if (f.out_vector_store) return store_piece<Out>(f.out.data, at, values);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float value[1] = {values[i]};
        if (column + i < f.head_dim_v) store_piece<Out>(f.out.data, at + i, value);
      }
    };
    if (E == Element::f32 || f.out_is_f32) {
      store.template operator()<Element::f32>();
    } else {
      store.template operator()<E>();
    }
  }

  __device__ __forceinline__ float* partial(const DecodeWork& work, int part, int item) const {
    return p.partial + (int64_t{work.slot_of(part)} * p.rows * kQuads + item) * 4;
  }
  __device__ __forceinline__ float* partial_sums(const DecodeWork& work, int part, int row) const {
    return p.partial_sums + (int64_t{work.slot_of(part)} * p.rows + row) * 2;
  }

  // The unit's states meet in memory. `first` and `count`: of the items of this block; state_of(i): its own of item
  // first + i. The last to come merges them all.
  template <class StateOf>
  __device__ __forceinline__ void meet(const DecodeWork& work, int first, int count, const StateOf& state_of) const {
    for (int i = thread; i < count; i += kThreads) {
      const State state = state_of(i);
      const int item = first + i;
      ptx::store_to_memory(partial(work, work.part, item), state.o);
      // Of a row that several blocks have, each writes the same.
      if (i == 0 || item % kQuads == 0) {
        const float sums[2] = {state.max, state.sum};
        ptx::store_to_memory(partial_sums(work, work.part, item / kQuads), sums);
      }
    }
    __syncthreads();
    uint32_t* is_last = reinterpret_cast<uint32_t*>(shared + kAt.barrier + 8);
    if (thread == 0) {
      ptx::fence_memory();
      *is_last = ptx::is_last_arrival(p.arrived + work.unit.idx * p.cluster + rank(), work.num_parts) ? 1 : 0;
      ptx::fence_memory();
    }
    __syncthreads();
    if (*is_last == 0) return;
    for (int i = thread; i < count; i += kThreads) {
      const int item = first + i;
      float sums[2];
      const auto max_of = [&](int part) {
        ptx::load_from_memory(sums, partial_sums(work, part, item / kQuads));
        return sums[0];
      };
      write(work, item, merged(work.num_parts, max_of, [&](int part, float weight, State& all) {
              float part_o[4];
              ptx::load_from_memory(part_o, partial(work, part, item));
              ptx::load_from_memory(sums, partial_sums(work, part, item / kQuads));
              add_state(all, weight, sums[1], part_o);
            }));
    }
  }

  // Blocks of a cluster: each gets the others' states of its own slice of items.
  __device__ __forceinline__ int slice_items() const { return p.slice.value; }
  __device__ __forceinline__ int items() const { return p.rows * kQuads; }
  __device__ uint32_t received(int from, int i) const {
    return base + kAt.received + (from * slice_items() + i) * 16;
  }
  __device__ uint32_t received_sums(int from, int row) const {
    return base + kAt.received + p.cluster * slice_items() * 16 + (from * p.rows + row) * 8;
  }
  __device__ __forceinline__ void send_state() const {
#pragma unroll 1
    for (int item = thread; item < items(); item += kThreads) {
      const int to = p.slice.quotient(item);
      const State state = staged(item);
      ptx::send(ptx::address_in(to, received(rank(), item - to * slice_items())), state.o,
                ptx::address_in(to, barrier()));
    }
#pragma unroll 1
    for (int i = thread; i < p.rows * p.cluster; i += kThreads) {
      const int to = i % p.cluster, row = i / p.cluster;
      const State state = staged(row * kQuads);
      const float sums[2] = {state.max, state.sum};
      ptx::send(ptx::address_in(to, received_sums(rank(), row)), sums, ptx::address_in(to, barrier()));
    }
  }
  __device__ __forceinline__ State state_of_cluster(int first, int i) const {
    const int row = (first + i) / kQuads;
    const auto sums_of = [&](int from) { return ptx::load_words(received_sums(from, row)); };
    return merged(
        p.cluster, [&](int from) { return __uint_as_float(sums_of(from).x); },
        [&](int from, float weight, State& all) {
          const uint4 words = ptx::load_chunk(received(from, i));
          const float o[4] = {__uint_as_float(words.x), __uint_as_float(words.y), __uint_as_float(words.z),
                              __uint_as_float(words.w)};
          add_state(all, weight, __uint_as_float(sums_of(from).y), o);
        });
  }

  // Of a sequence's rows that belong to no query.
  __device__ __forceinline__ void write_rows_without_query(const DecodeWork& work) const {
    if (work.part != 0 || work.unit.row_tile != 0 || rank() != 0) return;
    if (work.sequence.len_q == work.sequence.slots_q) return;
#pragma unroll 1
    for (int32_t head = 0; head < p.forward.group.value; ++head) {
      const WorkTile tile = {work.unit.batch_idx, work.unit.head_kv * p.forward.group.value + head, 0, 0};
      const ZeroRows<kThreads> rows = {p.forward, tile, work.sequence, 0, p.forward.head_dim_v,
                                       E == Element::f32 || p.forward.out_is_f32};
      rows.write(work.sequence.len_q, work.sequence.slots_q, -kInfinity);
    }
  }

  __device__ __forceinline__ void compute(const DecodeWork& work, bool waits_for_q) {
    if (work.rows.num_rows == 0) {
      if (waits_for_q) ptx::wait_for_previous_kernel();
      return write_rows_without_query(work);
    }
    const bool is_cluster = ptx::kHasClusters && p.cluster > 1;
    const int first = rank() * slice_items(), count = clamp(items() - first, 0, slice_items());
    if constexpr (ptx::kHasClusters) {
      if (is_cluster) {
        if (thread == 0) ptx::arrive_expecting(barrier(), p.cluster * (count * 16 + p.rows * 8));
        ptx::arrive_at_cluster();  // what the others send may come
      }
    }
    Rows rows;
    Sums o;
    const bool is_above = attend<C.unified_max>(work, waits_for_q, rows, o);
    stage_state(rows, o);
    if constexpr (C.unified_max) {
      if (__syncthreads_or(is_above || sums_are_small(work))) {
        attend<false>(work, false, rows, o);
        stage_state(rows, o);
      }
    }
    if constexpr (ptx::kHasClusters) {
      if (is_cluster) {
        ptx::wait_for_cluster();
        send_state();
        ptx::wait_for_sent(barrier(), phase);
        phase ^= 1;
      }
    }
    const auto state_of = [&](int i) { return is_cluster ? state_of_cluster(first, i) : staged(i); };
    if (work.num_parts == 1) {
#pragma unroll 1
      for (int i = thread; i < count; i += kThreads) write(work, first + i, state_of(i));
    } else {
      meet(work, first, count, state_of);
    }
    write_rows_without_query(work);
    __syncthreads();  // shared memory is free for the next work
  }
};

template <DecodeConfig C>
__global__ void __launch_bounds__(C.num_warps * 32, 1) decode(const __grid_constant__ DecodeParams p) {
  Decode<C> block(p);
  ptx::let_next_kernel_start();
  if constexpr (ptx::kHasClusters) {
    if (p.cluster > 1) {
      if (block.thread == 0) {
        ptx::init_barrier(block.barrier(), 1);
        ptx::publish_barriers();
      }
      __syncthreads();
    }
  }
  bool waits_for_q = p.cache_is_settled != 0;
  if (!waits_for_q) ptx::wait_for_previous_kernel();
  DecodeWorks works(p, static_cast<int32_t>(blockIdx.x) / p.cluster, Decode<C>::kStepKeys * p.cluster);
  DecodeWork work;
  while (works.next(work)) {
    block.compute(work, waits_for_q);
    waits_for_q = false;
  }
}

}  // namespace tessella::device
