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
#include "cuda/device/ptx/order.hpp"
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

// What a cluster computes at a time.
struct DecodeWork {
  DecodeUnit unit;
  Sequence32 sequence;
  int32_t first_row, num_rows;  // of the unit's query rows
  KeyRange visible, full;       // keys that some row sees, beside those of keep_first, and that all rows see
  Drafts drafts;
  Rounds rounds;
  Part part;
};

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
  static constexpr int kPieces = C.head_dim_v / 16;  // of 16 columns
  static constexpr int kGroupWarps = portable::group_warps(C), kGroups = portable::groups(C);
  static constexpr int kOwnPieces = (kPieces + kGroupWarps - 1) / kGroupWarps;  // of a warp
  static constexpr int kQuads = C.head_dim_v / 4;
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
  int32_t rank;        // of the block in its cluster
  uint32_t phase = 0;  // of the cluster's barrier

  __device__ __forceinline__ explicit Decode(const DecodeParams& params)
      : p(params),
        shared(ptx::dynamic_shared()),
        base(ptx::shared_address(shared)),
        thread(static_cast<int>(threadIdx.x)),
        lane(thread % 32),
        warp(thread / 32),
        rank(static_cast<int32_t>(blockIdx.x & static_cast<unsigned>(p.cluster - 1))) {}  // a power of two

  __device__ RowInfo* row_infos() const { return reinterpret_cast<RowInfo*>(shared + kAt.row_infos); }
  __device__ uint64_t* drafts() const { return reinterpret_cast<uint64_t*>(shared + kAt.drafts); }
  __device__ float* tops() const { return reinterpret_cast<float*>(shared + kAt.tops); }  // [warp][row]
  __device__ float* maxima() const {                                                      // [group][row]
    return reinterpret_cast<float*>(shared + kAt.maxima);
  }
  __device__ float* staged_out(int group) const {
    return reinterpret_cast<float*>(shared + kAt.values) + group * C.rows * portable::out_pitch(C);
  }
  __device__ int group() const { return warp / kGroupWarps; }
  __device__ int first_of_group() const { return group() * kGroupWarps; }
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
  // The same where it is rarely asked: places of all rows, found before the loop, would take registers in it.
  __device__ static int row_anew(int n, int c) { return n * 8 + ptx::lane_anew() % 4 * 2 + c; }

  // ---- before the loop ----

  // The next work of the block's cluster: what its rows see, and which rounds it takes. False if there is none.
  __device__ __forceinline__ bool begin(DecodeWorks& works, DecodeWork& work) const {
    while (works.next_unit(work.unit)) {
      work.sequence = sequence<int32_t>(p.forward, work.unit.batch_idx);
      work.first_row = work.unit.row_tile * p.rows;
      work.num_rows = clamp(work.sequence.len_q * p.forward.group.value - work.first_row, 0, p.rows);
      if (thread < C.rows) row_infos()[thread] = row_info(work, min(thread, max(work.num_rows - 1, 0)));
      if constexpr (C.score.draft_mask) read_drafts(work);
      __syncthreads();
      const RowInfo &first = row_infos()[0], &last = row_infos()[C.rows - 1];
      work.visible = {first.begin, last.end};
      work.full = {last.begin, first.end};
      if constexpr (C.score.draft_mask) {
        work.drafts = {work.sequence.len_kv - work.sequence.len_q, drafts_seen()};
        work.full.end = min(work.full.end, work.drafts.begin);
      }
      work.rounds = work.num_rows == 0 ? Rounds() : Rounds(work.visible, p.forward.keep_first, p.log2_round_keys);
      work.part = Part();
      if (works.part(work.unit, work.rounds, work.part)) return true;
      __syncthreads();
    }
    return false;
  }
  __device__ __forceinline__ RowInfo row_info(const DecodeWork& work, int32_t row) const {
    const int32_t query = p.forward.group.quotient(work.first_row + row);
    const KeyRange keys = row_keys(work.sequence, query);
    RowInfo info = {keys.begin, keys.end, query + work.sequence.len_kv - work.sequence.len_q, 0.0f};
    if constexpr (C.score.alibi) {
      const portable::TableParams& slopes = p.forward.alibi_slopes;
      info.slope = static_cast<const float*>(
          slopes.data)[work.unit.batch_idx * slopes.batch_stride + head_of(work, row) * slopes.stride];
    }
    return info;
  }
  // A word for each query of the sequence: which of its keys it sees.
  __device__ __forceinline__ void read_drafts(const DecodeWork& work) const {
    const portable::ScoreOperandParams& mask = p.forward.draft_mask;
    const uint8_t* flags = static_cast<const uint8_t*>(mask.data) + work.unit.batch_idx * mask.batch_stride;
    const int32_t count = min(work.sequence.len_q, portable::kMostDrafts);
    uint64_t seen = 0;
#pragma unroll 1
    for (int query = warp; query < count; query += C.num_warps) {
      uint32_t words[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int key = i * 32 + lane;
        const bool sees = key < count && flags[query * mask.q_stride + key * mask.kv_stride] != 0;
        words[i] = __ballot_sync(kAllLanes, sees);
      }
      const uint64_t word = uint64_t{words[1]} << 32 | words[0];
      if (lane == 0) drafts()[query] = word;
      seen |= word;
    }
    if (lane == 0) drafts()[portable::kMostDrafts + warp] = seen;
  }
  __device__ __forceinline__ uint64_t drafts_seen() const {
    uint64_t seen = 0;
#pragma unroll
    for (int w = 0; w < C.num_warps; ++w) seen |= drafts()[portable::kMostDrafts + w];
    return seen;
  }
  // Of q's heads, of a query row.
  __device__ __forceinline__ int32_t head_of(const DecodeWork& work, int row) const {
    const int32_t at = work.first_row + row;
    return work.unit.head_kv * p.forward.group.value + at - p.forward.group.quotient(at) * p.forward.group.value;
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
      if (row >= work.num_rows || chunk * TileQ::kChunkElements >= p.forward.head_dim_qk) continue;
      const int64_t at = element_of(p.forward.q, work, row) + chunk * TileQ::kChunkElements;
      loaded.chunks[i] =
          *reinterpret_cast<const uint4*>(static_cast<const char*>(p.forward.q.data) + at * kElementBytes);
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
    return row_offset(tensor, {work.unit.batch_idx, head_of(work, row), 0, 0}, work.sequence,
                      p.forward.group.quotient(work.first_row + row));
  }

  // ---- the loop ----

  // The first key of the warp's tile in the round that count() counts as `idx`.
  __device__ __forceinline__ int32_t first_key(const DecodeWork& work, int32_t idx) const {
    return ((work.rounds.at(idx) * p.cluster + rank) * C.num_warps + warp) * portable::kDecodeTile;
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
  __device__ __forceinline__ void mask(float (&s)[kBlocks][4], const DecodeWork& work, int32_t key) const {
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const RowInfo& info = row_infos()[row_anew(n, c)];
        const KeyRange keys = {info.begin, info.end};
#pragma unroll
        for (int i = c; i < 4; i += 2) {
          bool sees = keys.sees(key + i / 2 * 8, p.forward.keep_first);
          if constexpr (C.score.draft_mask) {
            const int32_t query = info.position - work.drafts.begin, draft = key + i / 2 * 8 - work.drafts.begin;
            sees = sees && (draft < 0 || (drafts()[query] >> draft & 1) != 0);
          }
          if (!sees) s[n][i] = -kInfinity;
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
  // Probabilities of the warp's 16 keys to shared memory; sums: of those of this lane.
  __device__ __forceinline__ void exponentiate(const float (&s)[kBlocks][4], const Rows& rows, float scale_log2,
                                               int buffer, float (&sums)[kBlocks][2]) const {
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
      float probs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) probs[i] = ptx::exp2((s[n][i] - offset(rows.max[n][i % 2])) * scale_log2);
#pragma unroll
      for (int c = 0; c < 2; ++c) sums[n][c] = probs[c] + probs[c + 2];
      Transposed<E>::store_probs(s_probs(buffer, warp, n), probs, lane);
    }
  }

  // All warps of the group are here: what they stored and copied is there for each other. True if some lane says so.
  template <bool Votes>
  __device__ __forceinline__ static bool meet_and_vote(bool mine) {
    if constexpr (C.warps_alone) {
      __syncwarp();
      return Votes && __any_sync(kAllLanes, mine);
    } else if constexpr (Votes) {
      return __syncthreads_or(mine) != 0;
    } else {
      __syncthreads();
      return false;
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
    float tops_of_rows[kBlocks][2];
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        tops_of_rows[n][c] = max_of_keys(fmaxf(s[n][c], s[n][c + 2]));
        if (!C.warps_alone && lane < 4) tops()[warp * C.rows + row_anew(n, c)] = tops_of_rows[n][c];
      }
    }
    if constexpr (!C.warps_alone) __syncthreads();
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float top = tops_of_rows[n][c];
        if constexpr (!C.warps_alone) {
#pragma unroll
          for (int w = 0; w < C.num_warps; ++w) top = fmaxf(top, tops()[w * C.rows + row_anew(n, c)]);
        }
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
    // Unrolled, loads of several tiles take registers that many rows or fp32 lack.
    constexpr int kUnroll = kBlocks >= 8 || E == Element::f32 ? 1 : kGroupWarps;
#pragma unroll kUnroll
    for (int w = 0; w < kGroupWarps; ++w) {
      const int of_warp = first_of_group() + w;
      typename Transposed<E>::Probs probs[kBlocks];
#pragma unroll
      for (int n = 0; n < kBlocks; ++n) probs[n] = Transposed<E>::load_probs(s_probs(buffer, of_warp, n), lane);
#pragma unroll
      for (int piece = 0; piece < kOwnPieces; ++piece) {
        const int own = piece * kGroupWarps + warp % kGroupWarps;
        if (kPieces % kGroupWarps != 0 && own >= kPieces) continue;
        const typename Transposed<E>::template Values<TileV> values(s_values(stage, of_warp), own, lane);
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) Transposed<E>::template multiply<TileV>(o[piece][n], values, probs[n]);
      }
    }
  }

  // The work's steps of this block: o and sums over its keys, relative to maxima. Unified: relative to zero, and true
  // if some score lies too far above.
  template <bool Unified>
  __device__ __forceinline__ bool attend(const DecodeWork& work, bool waits_for_q, Rows& rows, Sums& o) const {
    // Queries are asked for first: behind the tiles they would come last. Many would take registers until they are
    // there.
    constexpr bool kStoresAtOnce = kOwnChunks > 2;
    QueryChunks chunks;
    if (!waits_for_q) chunks = load_queries(work);
    if (kStoresAtOnce && !waits_for_q) store_queries(chunks);
    const CacheRows cache(p.forward, work.sequence, work.unit.batch_idx, work.unit.head_kv, work.visible, work.drafts,
                          kElementBytes);
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
    bool is_above = false;

    // Keys and values of a step are copied `depth` steps ahead, each as soon as its place is free: keys when this warp
    // has its scores, values when its group is at the next step's barrier.
    const int32_t begin = work.part.begin, end = work.part.end;
    CacheTile ahead = {false, 0, -1};
    const auto find = [&](int32_t idx) {
      if (idx < end) ahead = cache.find(first_key(work, idx), lane);
    };
    const auto load_keys = [&](int32_t idx, int stage) {
      if (idx < end) cache.load_keys<TileK>(s_keys(stage), ahead, lane);
      ptx::commit_copies();
    };
    const auto load_values = [&](int32_t idx, int stage) {
      if (idx < end) cache.load_values<TileV>(s_values(stage, warp), ahead, lane);
      ptx::commit_copies();
    };
    find(begin);
#pragma unroll 1
    for (int i = 0; i < C.depth; ++i) {
      load_keys(begin + i, i);
      load_values(begin + i, i);
      find(begin + i + 1);
    }
    if (waits_for_q) {
      ptx::wait_for_previous_kernel();
      chunks = load_queries(work);
    }
    if (!kStoresAtOnce || waits_for_q) store_queries(chunks);
    __syncthreads();
    const Queries queries(base + kAt.queries, lane);

    constexpr int kLater = 2 * C.depth - 1;  // groups of copies begun after those that a step waits for
    int stage = 0, stage_v = 0, free_v = C.depth;
#pragma unroll 1
    for (int32_t idx = begin; idx < end; ++idx) {
      ptx::wait_copies<kLater>();
      __syncwarp();
      float s[kBlocks][4], sums[kBlocks][2];
      multiply_kq<E, TileK, kSteps>(s, s_keys(stage), queries, lane);
      __syncwarp();  // all lanes have read the keys
      load_keys(idx + C.depth, stage);
      stage = stage + 1 == C.depth ? 0 : stage + 1;
      const int32_t tile = first_key(work, idx);
      modify(s, tile + lane / 4);
      if (tile < work.full.begin || tile + portable::kDecodeTile > work.full.end) mask(s, work, tile + lane / 4);
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
      const int buffer = (idx - begin) & 1;
      exponentiate(s, rows, log2_of_score, buffer, sums);
      ptx::wait_copies<kLater>();
      if (meet_and_vote<!Unified>(is_raised)) {
        raise_max(s, rows, o, log2_of_score);
        exponentiate(s, rows, log2_of_score, buffer, sums);
        meet_and_vote<false>(false);
      }
#pragma unroll
      for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) rows.sum[n][c] += sums[n][c];
      }
      load_values(idx + C.depth, free_v);
      free_v = free_v == C.depth ? 0 : free_v + 1;
      find(idx + C.depth + 1);
      multiply_values(o, stage_v, buffer);
      stage_v = stage_v == C.depth ? 0 : stage_v + 1;
    }
    ptx::wait_copies<0>();
    return is_above;
  }

  // ---- behind the loop ----

  // Exponents against zero serve where probabilities neither overflow (f16) nor vanish: as far as this block sees.
  __device__ __forceinline__ bool sums_are_small(const DecodeWork& work) const {
    if (thread >= work.num_rows || work.part.begin == work.part.end) return false;
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
        tops()[warp * C.rows + row_anew(n, c)] = sum;
        if (warp == first_of_group()) maxima()[group() * C.rows + row_anew(n, c)] = rows.max[n][c];
      }
    }
    __syncthreads();  // all warps are done with values, whose place the rows take
#pragma unroll
    for (int piece = 0; piece < kOwnPieces; ++piece) {
      const int own = piece * kGroupWarps + warp % kGroupWarps;
      if (kPieces % kGroupWarps != 0 && own >= kPieces) continue;
#pragma unroll
      for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          staged_out(group())[row_anew(n, i % 2) * portable::out_pitch(C) + own * 16 + lane / 4 + i / 2 * 8] =
              o[piece][n][i];
        }
      }
    }
    __syncthreads();
  }
  // Merges `count` states in order. sums_of(i): maximum and sum; load(i, o). So many at a time are on their way.
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

  // The block's own state. An item is four columns of a row.
  __device__ __forceinline__ State staged(int item) const {
    const int row = item / kQuads;
    const auto sums_of = [&](int of_group) {
      float sum = 0;
#pragma unroll
      for (int w = 0; w < kGroupWarps; ++w) sum += tops()[(of_group * kGroupWarps + w) * C.rows + row];
      return make_float2(maxima()[of_group * C.rows + row], sum);
    };
    return merged(kGroups, sums_of, [&](int of_group, float(&of)[4]) {
      const float* from = staged_out(of_group) + row * portable::out_pitch(C) + item % kQuads * 4;
#pragma unroll
      for (int i = 0; i < 4; ++i) of[i] = from[i];
    });
  }

  // Four columns of a row of out, and with the first of them the row's lse.
  __device__ __forceinline__ void write(const DecodeWork& work, int item, const State& state) const {
    const int row = item / kQuads, column = item % kQuads * 4;
    if (row >= work.num_rows || column >= p.forward.head_dim_v) return;
    const portable::ForwardParams& f = p.forward;
    const int32_t head_in_group = work.first_row + row - f.group.quotient(work.first_row + row) * f.group.value;
    const bool has_sink = f.sink.data != nullptr;
    const float sink = has_sink ? static_cast<const float*>(
                                      f.sink.data)[(work.unit.head_kv * f.group.value + head_in_group) * f.sink.stride]
                                : 0.0f;
    const RowResult result = finish(state.max, state.sum, scale(), has_sink, sink);
    if (column == 0 && f.lse.data != nullptr)
      static_cast<float*>(f.lse.data)[element_of(f.lse, work, row)] = result.lse;
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
    return p.partial + (int64_t{work.part.slot_of(part)} * p.rows * kQuads + item) * 4;
  }
  __device__ __forceinline__ float* partial_sums(const DecodeWork& work, int part, int row) const {
    return p.partial_sums + (int64_t{work.part.slot_of(part)} * p.rows + row) * 2;
  }

  // Leaves the state of an item for the cluster that comes last.
  __device__ __forceinline__ void leave(const DecodeWork& work, int first, int item, const State& state) const {
    ptx::store_to_memory(partial(work, work.part.idx, item), state.o);
    if (item != first && item % kQuads != 0) return;
    const float sums[2] = {state.max, state.sum};  // of a row that several blocks have, each leaves the same
    ptx::store_to_memory(partial_sums(work, work.part.idx, item / kQuads), sums);
  }
  // Whether all other clusters of the unit have left theirs.
  __device__ __forceinline__ bool is_last(const DecodeWork& work) const {
    uint32_t* vote = reinterpret_cast<uint32_t*>(shared + kAt.barrier + 8);
    __syncthreads();
    if (thread == 0) {
      ptx::fence_memory();
      *vote = ptx::is_last_arrival(p.arrived + work.unit.idx * p.cluster + rank, work.part.of) ? 1 : 0;
      if (*vote != 0) ptx::fence_memory();
    }
    __syncthreads();
    return *vote != 0;
  }
  __device__ __forceinline__ State state_of_parts(const DecodeWork& work, int item) const {
    const auto sums_of = [&](int part) {
      float sums[2];
      ptx::load_from_memory(sums, partial_sums(work, part, item / kQuads));
      return make_float2(sums[0], sums[1]);
    };
    return merged(work.part.of, sums_of,
                  [&](int part, float(&of_part)[4]) { ptx::load_from_memory(of_part, partial(work, part, item)); });
  }

  // Blocks of a cluster: each gets the others' states of its own slice of items.
  __device__ __forceinline__ int slice_items() const { return p.slice.value; }
  __device__ __forceinline__ int items() const { return p.rows * kQuads; }
  __device__ uint32_t received(int from, int i) const { return base + kAt.received + (from * slice_items() + i) * 16; }
  __device__ uint32_t received_sums(int from, int row) const {
    return base + kAt.received + p.cluster * slice_items() * 16 + (from * p.rows + row) * 8;
  }
  __device__ __forceinline__ void send_state() const {
#pragma unroll 1
    for (int item = thread; item < items(); item += kThreads) {
      const int to = p.slice.quotient(item);
      const State state = staged(item);
      ptx::send(ptx::address_in(to, received(rank, item - to * slice_items())), state.o,
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
  __device__ __forceinline__ State state_of_cluster(int first, int item) const {
    const auto sums_of = [&](int from) {
      const uint2 words = ptx::load_words(received_sums(from, item / kQuads));
      return make_float2(__uint_as_float(words.x), __uint_as_float(words.y));
    };
    return merged(p.cluster, sums_of, [&](int from, float(&of_block)[4]) {
      const uint4 words = ptx::load_chunk(received(from, item - first));
      of_block[0] = __uint_as_float(words.x), of_block[1] = __uint_as_float(words.y);
      of_block[2] = __uint_as_float(words.z), of_block[3] = __uint_as_float(words.w);
    });
  }

  // Of a sequence's rows that belong to no query.
  __device__ __forceinline__ void write_rows_without_query(const DecodeWork& work) const {
    if (work.part.idx != 0 || work.unit.row_tile != 0 || rank != 0) return;
    if (work.sequence.len_q == work.sequence.slots_q) return;
#pragma unroll 1
    for (int32_t head = 0; head < p.forward.group.value; ++head) {
      const WorkTile tile = {work.unit.batch_idx, work.unit.head_kv * p.forward.group.value + head, 0, 0};
      const ZeroRows<kThreads> rows = {
          p.forward, tile, work.sequence, 0, p.forward.head_dim_v, E == Element::f32 || p.forward.out_is_f32};
      rows.write(work.sequence.len_q, work.sequence.slots_q, -kInfinity);
    }
  }

  __device__ __forceinline__ void compute(const DecodeWork& work, bool waits_for_q) {
    const bool is_cluster = ptx::kHasClusters && p.cluster > 1;
    const int first = rank * slice_items(), end = min(first + slice_items(), items());
    if constexpr (ptx::kHasClusters) {
      if (is_cluster) {
        const int count = max(end - first, 0);
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
    // Once; twice for the last of a unit's clusters.
    for (bool has_all = work.part.of == 1, is_first = true;; has_all = true, is_first = false) {
#pragma unroll 1
      for (int item = first + thread; item < end; item += kThreads) {
        const State state = !is_first    ? state_of_parts(work, item)
                            : is_cluster ? state_of_cluster(first, item)
                                         : staged(item);
        if (has_all) {
          write(work, item, state);
        } else {
          leave(work, first, item, state);
        }
      }
      if (has_all || !is_last(work)) break;
    }
  }
};

template <DecodeConfig C>
__global__ void __launch_bounds__(C.num_warps * 32, 1) decode(const __grid_constant__ DecodeParams p) {
  Decode<C> block(p);
  ptx::let_next_kernel_start();
  if constexpr (ptx::kHasClusters) {
    if (p.cluster > 1 && block.thread == 0) {  // the others of the block know of it when begin() has met
      ptx::init_barrier(block.barrier(), 1);
      ptx::publish_barriers();
    }
  }
  bool waits_for_q = p.cache_is_settled != 0;
  if (!waits_for_q) ptx::wait_for_previous_kernel();
  DecodeWorks works(p, static_cast<int32_t>(blockIdx.x) / p.cluster);
  DecodeWork work;
  while (block.begin(works, work)) {
    if (work.num_rows > 0) {
      block.compute(work, waits_for_q);
    } else if (waits_for_q) {
      ptx::wait_for_previous_kernel();
    }
    waits_for_q = false;
    block.write_rows_without_query(work);
    __syncthreads();  // shared memory is free for the next work
  }
}

}  // namespace tessella::device
