// Decode: attention of few queries on long caches in one launch, with the keys split over blocks (Flash-Decoding, Dao
// et al., 2023). Any NVIDIA GPU from Ampere on, bf16, f16 and fp32, caches of 8 and 4 bits. Every cached byte is read
// once.
//
//   for each split of a unit's keys (kernels/decode/decode_work.cuh):               a cluster of blocks
//     for each of its steps, 16 keys a warp:                                  a block
//       s^T = k q^T -> softcap, ALiBi -> masks                                a warp, its own 16 keys
//       p^T = 2^(s - max)                                                     to shared memory, for all warps
//       o^T += v^T p^T                                                        a warp, its own columns of v
//     blocks send each other their o, max and sum; each merges its slice      st.async, one barrier in shared memory
//     the unit's last cluster merges the states that all clusters have left in memory, in order
//
// With v_in_k (MLA) values are read from the keys' shared memory. A few warps then score the same keys, each with its
// own rows, so that steps are short and several fit; and the blocks of a cluster read each other's states.
//
// The rows of a unit are all queries of a sequence times all heads of a KV head, 8 to 64. All warps of a block subtract
// the same maxima. A step has one block barrier, at which the warps also vote whether a maximum must rise. If so, they
// exchange the new maxima, rescale, and compute their probabilities again. A row's new maximum depends on that row
// alone.
#pragma once

#include "cuda/device/ptx/barrier.cuh"
#include "cuda/device/ptx/cluster.cuh"
#include "cuda/device/ptx/dependent.cuh"
#include "cuda/kernels/decode/block_decode.cuh"
#include "cuda/kernels/decode/cache_rows.cuh"
#include "cuda/kernels/decode/decode_softmax.cuh"

namespace tessella::device {

// The next kernel may start only after the previous one has ended. It then sees the results of all kernels before this
// one, even if it does not wait for this one.
__device__ __forceinline__ void follow_kernel_before() {
  ptx::wait_for_kernel_before();
  ptx::let_kernel_behind_start();
}

template <DecodeConfig C>
struct Decode : DecodeSoftmax<C> {
  using Block = BlockDecode<C>;
  using States = DecodeStates<C>;
  using Softmax = DecodeSoftmax<C>;
  using Block::p, Block::thread, Block::lane, Block::warp, Block::rank, Block::sent, Block::kThreads, Block::kBlocks,
      Block::kScoreBlocks, Block::kTiles, Block::kGroupTiles, Block::kTileWarps, Block::kPieces, Block::kGroupWarps,
      Block::kOwnPieces, Block::kOwnChunks, Block::kQuads, Block::kSteps, Block::kAreProducts, Block::kStrideBytes,
      Block::kStrideElements, Block::kHasPower, Block::E, Block::row_infos, Block::maxima, Block::tile,
      Block::tile_warp, Block::first_of_group, Block::s_keys, Block::s_values, Block::s_probs, Block::s_scales,
      Block::barrier, Block::scale_log2, Block::load_queries, Block::store_queries, Block::copy_later_queries,
      Block::kChunksAtOnce, Block::masked_rows, Block::row_sight;
  using Softmax::modify, Softmax::mask, Softmax::kHighestExponent, Softmax::kSmallestSum, Softmax::load_scales,
      Softmax::kLeastPower, Softmax::is_power_behind, Softmax::raise_power, Softmax::exponentiate, Softmax::is_behind,
      Softmax::raise_max, Softmax::raise_max_of_all, Softmax::publish_max;
  using Softmax::Softmax;
  using States::staged, States::stage_state, States::send_state, States::state_of_cluster, States::staged_of_cluster,
      States::state_of_splits, States::write, States::leave, States::is_last, States::num_quads, States::slice_quads;
  using typename Block::Rows, typename Block::Sums, typename Block::QueryChunks, typename Block::Queries,
      typename Block::TileK, typename Block::TileV, typename Block::Values, typename Softmax::Scales;
  using Scores = float[kScoreBlocks][4];

  // The first key of the warp's tile in the work's round number `idx`.
  __device__ __forceinline__ int32_t first_key(const DecodeWork& work, int32_t idx) const {
    return ((work.rounds.at(idx) * p.cluster + rank) * kTiles + tile()) * portable::kDecodeTile;
  }

  // Waits for all warps of the group; what they stored and copied is then visible to each other. Returns true if a lane
  // votes so.
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

  __device__ __forceinline__ void multiply_values(Sums& o, int stage, int buffer) const {
    // Not unrolled with many rows or fp32: the loads of several tiles would take registers that are needed elsewhere.
    constexpr int kUnroll = kBlocks >= 8 || E == Element::f32 ? 1 : kGroupTiles;
#pragma unroll kUnroll
    for (int i = 0; i < kGroupTiles; ++i) {
      const int of_tile = first_of_group() + i;
      typename Transposed<E>::Probs probs[kBlocks];
#pragma unroll
      for (int n = 0; n < kBlocks; ++n) probs[n] = Transposed<E>::load_probs(s_probs(buffer, of_tile, n), lane);
#pragma unroll
      for (int piece = 0; piece < kOwnPieces; ++piece) {
        const int own = piece * kGroupWarps + warp % kGroupWarps;
        if (kPieces % kGroupWarps != 0 && own >= kPieces) continue;
        const Values values(s_values(stage, of_tile), own, lane);
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) Transposed<E>::multiply(o[piece][n], values, probs[n]);
      }
    }
  }

  // Computes the block's steps of the work: o and sums over its keys, relative to the maxima. Unified: relative to
  // zero; returns true if some score is too large for that.
  template <bool Unified>
  __device__ __forceinline__ bool attend(const DecodeWork& work, bool waits_for_q, Rows& rows, Sums& o) const {
    // Queries are loaded before the key tiles, behind which they would wait. Many chunks are stored at once, since they
    // would hold registers until then.
    constexpr bool kStoresAtOnce = kOwnChunks > 2;
    QueryChunks chunks;
    if (!waits_for_q) chunks = load_queries(work);
    if (kStoresAtOnce && !waits_for_q) store_queries(chunks);
    Copies copies(*this, work);
    clear_rows<Unified>(rows);
    clear(o);
    copies.begin();
    if (waits_for_q) {
      follow_kernel_before();
      chunks = load_queries(work);
    }
    if (!kStoresAtOnce || waits_for_q) store_queries(chunks);
    if constexpr (kChunksAtOnce < kOwnChunks) copy_later_queries(work);
    __syncthreads();
    const Queries queries(this->s_queries(), lane);
    const float log2_of_score = scale_log2();
    bool is_above = false;
    if constexpr (C.v_in_k) {
      attend_latents(work, copies, queries, log2_of_score, rows, o);
    } else {
      is_above = attend_keys<Unified>(work, copies, queries, log2_of_score, rows, o);
    }
    ptx::wait_copies<0>();
    return is_above;
  }

  // Keys and values of a step are copied `depth` steps ahead, each as soon as its slot is free. A tile's rows are found
  // a step before they are copied: that reads the page table.
  class Copies {
   public:
    // Copy groups that may still be under way when a step starts: those of later steps.
    static constexpr int kLater = C.v_in_k ? C.depth - 1 : 2 * C.depth - 1;

    __device__ __forceinline__ Copies(const Decode& of, const DecodeWork& work)
        : of_(of),
          work_(work),
          cache_(of.p, of.masked_rows(work), of.row_infos(), work.num_rows, work.drafts, kStrideBytes,
                 kStrideElements) {}

    // The first `depth` steps.
    __device__ __forceinline__ void begin() {
      find(work_.split.begin);
#pragma unroll 1
      for (int i = 0; i < C.depth; ++i) {
        load_keys(work_.split.begin + i, i, i);
        load_values(work_.split.begin + i, i);
        find(work_.split.begin + i + 1);
      }
    }
    __device__ __forceinline__ void find(int32_t idx) {
      if (idx < work_.split.end) ahead_ = cache_.find(of_.first_key(work_, idx), of_.lane);
    }
    // Scales are copied with keys, and are read until the next step's barrier.
    __device__ __forceinline__ void load_keys(int32_t idx, int stage, int stage_of_scales) const {
      const bool is_there = idx < work_.split.end;
      if (is_there) {
        cache_.template load_keys<TileK, kTileWarps>(of_.s_keys(stage), ahead_, of_.lane, of_.tile_warp());
      }
      if constexpr (portable::is_quantized(C)) {
        if (is_there) cache_.load_scales(of_.s_scales(stage_of_scales, of_.warp), ahead_, of_.lane);
      }
      ptx::commit_copies();
    }
    __device__ __forceinline__ void load_values(int32_t idx, int stage) const {
      if constexpr (C.v_in_k) return;
      if (idx < work_.split.end) {
        cache_.template load_values<TileV>(of_.s_values(stage, of_.warp), ahead_, of_.lane);
      }
      ptx::commit_copies();
    }

   private:
    const Decode& of_;
    const DecodeWork& work_;
    const CacheRows<C.score> cache_;
    CacheTile ahead_ = {false, 0, -1};
  };

  // No key is seen yet.
  template <bool Unified>
  __device__ __forceinline__ void clear_rows(Rows& rows) const {
#pragma unroll
    for (int n = 0; n < kScoreBlocks; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        rows.max[n][c] = Unified ? 0.0f : -kInfinity;
        rows.sum[n][c] = 0;
      }
    }
    if constexpr (C.v_in_k) publish_max(rows);
    if constexpr (kHasPower) rows.power = kLeastPower;
  }

  // All steps. The slot of keys is free when this warp has its scores, that of values when the group is at the next
  // step's barrier.
  template <bool Unified>
  __device__ __forceinline__ bool attend_keys(const DecodeWork& work, Copies& copies, const Queries& queries,
                                              float log2_of_score, Rows& rows, Sums& o) const {
    bool is_above = false;
    int stage = 0, stage_v = 0, free_v = C.depth;
#pragma unroll 1
    for (int32_t idx = work.split.begin; idx < work.split.end; ++idx) {
      ptx::wait_copies<Copies::kLater>();
      __syncwarp();
      Scores s;
      Scales scales;
      multiply_kq<E, Block::kCache, TileK, kSteps>(s, s_keys(stage), queries, lane);
      if constexpr (portable::is_quantized(C)) scale_scores(s, scales, stage_v);
      __syncwarp();  // all lanes have read the keys
      copies.load_keys(idx + C.depth, stage, free_v);
      stage = stage + 1 == C.depth ? 0 : stage + 1;
      finish_scores(s, work, first_key(work, idx));
      const bool is_raised = is_max_behind<Unified>(s, rows, scales, log2_of_score, is_above);
      const int buffer = (idx - work.split.begin) & 1;
      float sums[kScoreBlocks][2];
      exponentiate(s, rows, log2_of_score, scales, buffer, sums);
      ptx::wait_copies<Copies::kLater>();
      if (meet_and_vote<!Unified>(is_raised)) {
        raise_max(s, rows, o, log2_of_score);
        if constexpr (kHasPower) raise_power(stage_v, rows, o);
        exponentiate(s, rows, log2_of_score, scales, buffer, sums);
        meet_and_vote<false>(false);
      }
      add_sums(rows, sums);
      copies.load_values(idx + C.depth, free_v);
      free_v = free_v == C.depth ? 0 : free_v + 1;
      copies.find(idx + C.depth + 1);
      multiply_values(o, stage_v, buffer);
      stage_v = stage_v == C.depth ? 0 : stage_v + 1;
    }
    return is_above;
  }

  // The same where values are read from the keys (MLA): a tile is copied after the block's barrier, by the warps that
  // score it.
  __device__ __forceinline__ void attend_latents(const DecodeWork& work, Copies& copies, const Queries& queries,
                                                 float log2_of_score, Rows& rows, Sums& o) const {
    int stage = 0;
#pragma unroll 1
    for (int32_t idx = work.split.begin; idx < work.split.end; ++idx) {
      ptx::wait_copies<Copies::kLater>();
      __syncthreads();
      copies.load_keys(idx + C.depth, stage == 0 ? C.depth : stage - 1, 0);
      Scores s;
      const Scales scales{};  // these caches have none
      multiply_kq<E, Block::kCache, TileK, kSteps>(s, s_keys(stage), queries, lane);
      finish_scores(s, work, first_key(work, idx));
      bool is_above = false;
      const bool is_raised = is_max_behind<false>(s, rows, scales, log2_of_score, is_above);
      float sums[kScoreBlocks][2];
      exponentiate(s, rows, log2_of_score, scales, 0, sums);
      if (meet_and_vote<true>(is_raised)) {
        raise_max_of_all(s, rows, o, log2_of_score);
        exponentiate(s, rows, log2_of_score, scales, 0, sums);
        meet_and_vote<false>(false);
        publish_max(rows);
      }
      add_sums(rows, sums);
      copies.find(idx + C.depth + 1);
      multiply_values(o, stage, 0);
      stage = stage == C.depth ? 0 : stage + 1;
    }
  }

  __device__ __forceinline__ void scale_scores(Scores& s, Scales& scales, int stage) const {
    load_scales(scales, stage);
#pragma unroll
    for (int n = 0; n < kScoreBlocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] *= scales.k[i / 2];
    }
  }
  // first: of the tile's keys.
  __device__ __forceinline__ void finish_scores(Scores& s, const DecodeWork& work, int32_t first) const {
    if constexpr (!kAreProducts) modify(s, first + lane / 4);
    if (first < work.full.begin || first + portable::kDecodeTile > work.full.end) mask(s, work, first + lane / 4);
  }
  // True if a maximum must rise for the lane's scores, or the power that divides probabilities. Unified: maxima are
  // zero; sets is_above if a score is too large for that.
  template <bool Unified>
  __device__ __forceinline__ bool is_max_behind(const Scores& s, const Rows& rows, const Scales& scales,
                                                float log2_of_score, bool& is_above) const {
    bool is_raised = false;
#pragma unroll
    for (int n = 0; n < kScoreBlocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (Unified) {
          is_above |= s[n][i] * log2_of_score > kHighestExponent;
        } else {
          is_raised |= is_behind(rows.max[n][i % 2], s[n][i], log2_of_score);
        }
      }
    }
    if constexpr (kHasPower) {
#pragma unroll
      for (int c = 0; c < 2; ++c) is_raised |= is_power_behind(rows.power, scales.v[c]);
    }
    return is_raised;
  }
  __device__ __forceinline__ static void add_sums(Rows& rows, const float (&sums)[kScoreBlocks][2]) {
#pragma unroll
    for (int n = 0; n < kScoreBlocks; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) rows.sum[n][c] += sums[n][c];
    }
  }

  // Exponents relative to zero are exact enough if probabilities neither overflow (f16) nor vanish over this block's
  // keys. A row of which the block sees no key needs its maximum too, because that is not zero. So does a row with few
  // keys: the probability of a single key must be exactly 1, and relative to zero it would be rounded.
  __device__ __forceinline__ bool needs_maximum(const DecodeWork& work) const {
    if (thread >= work.num_rows) return false;
    const RowInfo& info = row_infos()[thread];
    constexpr int32_t kFewKeys = 16;
    return min(info.end, row_sight(work).first_masked()) - info.begin < kFewKeys ||
           !(staged(thread * kQuads).sum >= kSmallestSum);
  }

  __device__ __forceinline__ void compute(const DecodeWork& work, bool waits_for_q) {
    const bool is_cluster = ptx::kHasClusters && p.cluster > 1;
    const int first = rank * slice_quads(), end = min(first + slice_quads(), num_quads());
    if constexpr (ptx::kHasClusters && !C.v_in_k) {
      if (is_cluster) {
        const int count = max(end - first, 0);
        if (thread == 0) ptx::arrive_expecting(barrier(), p.cluster * (count * 16 + p.rows * 8));
        ptx::arrive_at_cluster();  // other blocks may send now
      }
    }
    Rows rows;
    Sums o;
    const bool is_above = attend<C.unified_max>(work, waits_for_q, rows, o);
    stage_state(rows, o);
    if constexpr (C.unified_max) {
      if (__syncthreads_or(is_above || needs_maximum(work))) {
        attend<false>(work, false, rows, o);
        stage_state(rows, o);
      }
    }
    if constexpr (ptx::kHasClusters && C.v_in_k) {
      if (is_cluster) ptx::sync_cluster();  // all have staged their states
    } else if constexpr (ptx::kHasClusters) {
      if (is_cluster) {
        ptx::wait_for_cluster();
        send_state();
        sent.wait(barrier());
      }
    }
    // Runs once, or twice in the last of a unit's clusters: first to leave its own state, then to merge all.
    for (bool has_all = work.split.of == 1, is_first = true;; has_all = true, is_first = false) {
#pragma unroll 1
      for (int quad = first + thread; quad < end; quad += kThreads) {
        const State state = !is_first    ? state_of_splits(work, quad)
                            : is_cluster ? all_of_cluster(first, quad)
                                         : staged(quad);
        if (has_all) {
          write(work, quad, state);
        } else {
          leave(work, first, quad, state);
        }
      }
      if (has_all || !is_last(work)) break;
    }
    if constexpr (ptx::kHasClusters && C.v_in_k) {
      if (is_cluster) ptx::sync_cluster();  // the others have read this block's state
    }
  }
  __device__ __forceinline__ State all_of_cluster(int first, int quad) const {
    if constexpr (C.v_in_k) {
      return staged_of_cluster(quad);
    } else {
      return state_of_cluster(first, quad);
    }
  }
};

template <DecodeConfig C>
__global__ void __launch_bounds__(C.num_warps * 32, 1) decode(const __grid_constant__ DecodeParams p) {
  Decode<C> block(p);
  if constexpr (ptx::kHasClusters) {
    if (p.cluster > 1 && block.thread == 0) {  // the others of the block know of it when begin() has met
      ptx::init_barrier(block.barrier(), 1);
      ptx::publish_barriers();
    }
  }
  bool waits_for_q = p.cache_is_settled != 0;
  if (!waits_for_q) follow_kernel_before();
  DecodeWorks works(p, static_cast<int32_t>(blockIdx.x) / p.cluster);
  DecodeWork work;
  while (block.begin(works, work)) {
    if (work.num_rows > 0) {
      block.compute(work, waits_for_q);
    } else if (waits_for_q) {
      follow_kernel_before();
    }
    waits_for_q = false;
    block.write_rows_without_query(work);
    __syncthreads();  // shared memory is free for the next work
  }
}

}  // namespace tessella::device
