// One block of decode: its shared memory, its work, and the bounds of its query rows.
#pragma once

#include "cuda/device/ptx/cluster.cuh"
#include "cuda/device/ptx/order.cuh"
#include "cuda/device/ptx/shared.cuh"
#include "cuda/device/score/softmax.cuh"
#include "cuda/device/tile/widened.cuh"
#include "cuda/device/tile/zero_rows.cuh"
#include "cuda/kernels/decode/cache_rows.cuh"
#include "cuda/kernels/decode/decode_work.cuh"
#include "cuda/kernels/decode/transposed.cuh"

namespace tessella::device {

using portable::DecodeConfig;

// The work of a cluster: one split of one unit's keys.
struct DecodeWork {
  DecodeUnit unit;
  Sequence32 sequence;
  int32_t first_row, num_rows;  // of the unit's query rows
  KeyRange full;                // keys that all rows see
  Drafts drafts;
  Rounds rounds;
  ClusterSplit split;
};

// Waits for each phase of a barrier, one after the other: a parity tells a phase from its neighbours alone.
class SentPhases {
 public:
  __device__ __forceinline__ void wait(uint32_t barrier) {
    ptx::wait_for_sent(barrier, parity_);
    parity_ ^= 1;
  }

 private:
  uint32_t parity_ = 0;
};

template <DecodeConfig C>
struct BlockDecode {
  static constexpr portable::DecodeLayout kAt = portable::layout(C);
  static constexpr Element E = C.score.elements.q, kCache = C.score.elements.kv;
  static_assert(E == C.score.elements.p);
  static constexpr int kThreads = C.num_warps * 32;
  static constexpr int kBlocks = C.rows / 8;
  static constexpr int kPieces = C.head_dim_v / 16;  // of 16 columns
  static constexpr int kGroupWarps = portable::group_warps(C), kGroups = portable::groups(C);
  static constexpr int kOwnPieces = (kPieces + kGroupWarps - 1) / kGroupWarps;  // of a warp
  static constexpr int kTiles = portable::key_tiles(C);
  static constexpr int kGroupTiles = kTiles / kGroups;       // of a group of warps
  static constexpr int kTileWarps = C.num_warps / kTiles;    // warps that score the same keys,
  static constexpr int kScoreBlocks = kBlocks / kTileWarps;  // with so many blocks of rows of their own
  static constexpr int kQuads = C.head_dim_v / 4;
  static constexpr int kElementBytes = portable::size_bytes(E);
  // Strides of k and v count elements of q's type, or bytes if the cache has fewer bits.
  static constexpr bool kIsWidened = portable::is_quantized(kCache);
  static_assert(kIsWidened ? portable::is_of_caches(kCache) : kCache == E);
  static constexpr int kStrideBytes = kIsWidened ? 1 : kElementBytes, kStrideElements = kCache == Element::i4 ? 2 : 1;
  using TileK = Tile<portable::kDecodeTile, C.head_dim_qk / kStrideElements, kStrideBytes>;
  using TileV = Tile<portable::kDecodeTile, (C.v_in_k ? C.head_dim_qk : C.head_dim_v) / kStrideElements, kStrideBytes>;
  // Probabilities times v_scale are divided by a power of two, which keeps them inside f16 (decode.cuh).
  static constexpr bool kHasPower = portable::is_quantized(C) && E == Element::f16;
  using TileQ = Tile<C.rows, C.head_dim_qk, kElementBytes>;
  using Values = typename ValueOperand<E, kCache, TileV>::Type;
  static constexpr int kSteps = C.head_dim_qk / Multiply<E>::kDepth;
  using Queries = QueryOperands<E, TileQ, kScoreBlocks, kSteps>;
  // True if scores stay products of q and k until the exponent; false if they are in natural units.
  static constexpr bool kAreProducts = !C.score.softcap && !C.score.alibi;

  const DecodeParams& p;
  char* shared;
  uint32_t base;
  int thread, lane, warp;
  int32_t rank;     // of the block in its cluster
  SentPhases sent;  // of the cluster's barrier

  __device__ __forceinline__ explicit BlockDecode(const DecodeParams& params)
      : p(params),
        shared(ptx::dynamic_shared()),
        base(ptx::shared_address(shared)),
        thread(static_cast<int>(threadIdx.x)),
        lane(thread % 32),
        warp(thread / 32),
        rank(static_cast<int32_t>(blockIdx.x & static_cast<unsigned>(p.cluster - 1))) {}  // a power of two

  __device__ RowInfo* row_infos() const { return reinterpret_cast<RowInfo*>(shared + kAt.row_infos); }
  __device__ uint64_t* drafts() const { return reinterpret_cast<uint64_t*>(shared + kAt.drafts); }
  __device__ float* tops() const { return reinterpret_cast<float*>(shared + kAt.tops); }  // [tile][row]
  __device__ float* maxima() const {                                                      // [group][row]
    return reinterpret_cast<float*>(shared + kAt.maxima);
  }
  __device__ float* staged_out(int group) const {
    return reinterpret_cast<float*>(shared + kAt.values) + group * C.rows * portable::out_pitch(C);
  }
  __device__ int group() const { return warp / kGroupWarps; }
  // The step's key tile that this warp scores, and the first tile of its group.
  __device__ int tile() const {
    if constexpr (kTileWarps == 1) return warp;
    return warp % kTiles;
  }
  __device__ int first_of_group() const { return group() * kGroupTiles; }
  // The first block of query rows that the warp scores. It also says which portion of the tile the warp copies.
  __device__ int tile_warp() const { return kTileWarps == 1 ? 0 : warp / kTiles; }
  __device__ int first_block() const { return tile_warp() * kScoreBlocks; }
  // Queries of the rows that the warp scores.
  __device__ uint32_t s_queries() const {
    if constexpr (kTileWarps == 1) return base + kAt.queries;
    return base + kAt.queries + TileQ::offset(first_block() * 8, 0);
  }
  __device__ uint32_t s_keys(int stage) const { return base + kAt.keys + (stage * kTiles + tile()) * TileK::kBytes; }
  __device__ uint32_t s_values(int stage, int of_tile) const {
    return base + kAt.values + (stage * kTiles + of_tile) * TileV::kBytes;
  }
  __device__ uint32_t s_probs(int buffer, int of_tile, int n) const {
    return base + kAt.probs + ((buffer * kTiles + of_tile) * kBlocks + n) * portable::probs_bytes(C);
  }
  // Probabilities of block n of the rows that the warp scores.
  __device__ uint32_t s_score_probs(int buffer, int n) const {
    if constexpr (kTileWarps == 1) return s_probs(buffer, warp, n);
    return s_probs(buffer, tile(), first_block() + n);
  }
  __device__ uint32_t s_scales(int stage, int of_warp) const {
    return base + kAt.scales + (stage * C.num_warps + of_warp) * portable::kStepScaleBytes;
  }
  __device__ uint32_t barrier() const { return base + kAt.barrier; }

  // The factor from the softmax's scores to natural ones. It is never 0, because a hidden key's -inf times 0 is NaN.
  __device__ float scale() const { return kAreProducts ? fmaxf(fabsf(p.scores.scale), 0x1p-126f) : 1.0f; }
  __device__ float scale_log2() const { return scale() * kLog2e; }

  // Query row c (0 or 1) of the lane in block n of 8 rows.
  __device__ int row_of(int n, int c) const { return n * 8 + lane % 4 * 2 + c; }
  // The same row for code that runs rarely: positions computed before the loop would hold registers throughout it.
  __device__ static int row_anew(int n, int c) { return n * 8 + ptx::lane_anew() % 4 * 2 + c; }
  // The same among the rows that the warp scores.
  __device__ int score_row(int n, int c) const { return row_of(kTileWarps == 1 ? n : first_block() + n, c); }
  __device__ int score_row_anew(int n, int c) const { return row_anew(kTileWarps == 1 ? n : first_block() + n, c); }

  // Finds the cluster's next work: the keys that its rows see and the rounds it computes. False if there is none.
  __device__ __forceinline__ bool begin(DecodeWorks& works, DecodeWork& work) const {
    while (works.next_unit(work.unit)) {
      work.sequence = sequence<int32_t>(p.sequences, p.masks, work.unit.batch_idx);
      work.first_row = work.unit.row_tile * p.rows;
      work.num_rows = clamp(work.sequence.len_q * p.sequences.group.value - work.first_row, 0, p.rows);
      if (thread < C.rows) row_infos()[thread] = row_info(work, min(thread, max(work.num_rows - 1, 0)));
      if constexpr (C.score.element_masks.draft_mask) read_drafts(work);
      __syncthreads();
      const RowInfo &first = row_infos()[0], &last = row_infos()[C.rows - 1];
      const KeyRange visible = {first.begin, last.end};  // by some row, if any
      work.full = {last.begin, first.end};
      if constexpr (C.score.element_masks.draft_mask) {
        work.drafts = {work.sequence.len_kv - work.sequence.len_q, drafts()};
      }
      work.full.end = min(work.full.end, row_sight(work).first_masked());
      work.rounds = work.num_rows == 0 ? Rounds() : Rounds(visible, p.masks.keep_first, p.log2_round_keys);
      work.split = ClusterSplit();
      if (works.split(work.unit, work.rounds, work.split)) return true;
      __syncthreads();
    }
    return false;
  }
  __device__ static MaskedRows masked_rows(const DecodeWork& work) {
    return {work.sequence, work.unit.batch_idx, work.unit.head_kv, work.first_row};
  }
  __device__ RowSight<C.score> row_sight(const DecodeWork& work) const { return {p, masked_rows(work), work.drafts}; }
  __device__ __forceinline__ RowInfo row_info(const DecodeWork& work, int32_t row) const {
    const int32_t query = p.sequences.group.quotient(work.first_row + row);
    const KeyRange keys = row_keys(work.sequence, query);
    RowInfo info = {keys.begin, keys.end, query + work.sequence.len_kv - work.sequence.len_q, 0.0f};
    if constexpr (C.score.alibi) {
      if (work.num_rows == 0) return info;  // rows after the last sequence, which have no slopes
      const portable::TableParams& slopes = p.scores.alibi_slopes;
      info.slope = static_cast<const float*>(
          slopes.data)[work.unit.batch_idx * slopes.batch_stride + head_of(work, row) * slopes.stride];
    }
    return info;
  }
  // Reads a word for each query of the sequence: which of the last keys it sees.
  __device__ __forceinline__ void read_drafts(const DecodeWork& work) const {
    const portable::DraftMask& mask = p.masks.elements.draft_mask;
    const uint8_t* flags = mask.data + work.unit.batch_idx * mask.batch_stride;
    const int32_t count = min(work.sequence.len_q, portable::kMostDrafts);
#pragma unroll 1
    for (int query = warp; query < count; query += C.num_warps) {
      uint32_t words[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int key = i * 32 + lane;
        const bool sees = key < count && flags[query * mask.q_stride + key * mask.kv_stride] != 0;
        words[i] = __ballot_sync(kAllLanes, sees);
      }
      if (lane == 0) drafts()[query] = uint64_t{words[1]} << 32 | words[0];
    }
  }
  // The query head of a query row.
  __device__ __forceinline__ int32_t head_of(const DecodeWork& work, int row) const {
    const int32_t at = work.first_row + row;
    return work.unit.head_kv * p.sequences.group.value + at - p.sequences.group.quotient(at) * p.sequences.group.value;
  }

  // Copies query rows to shared memory, prepared for the products. Missing rows and columns become zeros.
  static constexpr int kQueryChunks = C.rows * TileQ::kChunks;
  static constexpr int kOwnChunks = (kQueryChunks + kThreads - 1) / kThreads;
  static constexpr int kChunksAtOnce = C.v_in_k && kOwnChunks > 9 ? 9 : kOwnChunks;  // that registers hold
  static_assert(kOwnChunks % kChunksAtOnce == 0);
  struct QueryChunks {
    uint4 chunks[kChunksAtOnce];
  };
  // Returns the thread index that addresses chunks of q. Long rows compute it again, so that it holds no register of o.
  __device__ __forceinline__ int thread_of_queries() const {
    int32_t of = thread;
    if constexpr (C.v_in_k) ptx::forget(of);
    return of;
  }
  // Loads the thread's chunks from chunk `first` on.
  __device__ __forceinline__ QueryChunks load_queries(const DecodeWork& work, int first = 0) const {
    QueryChunks loaded;
    const int first_idx = first * kThreads + thread_of_queries();
#pragma unroll
    for (int i = 0; i < kChunksAtOnce; ++i) {
      const int idx = i * kThreads + first_idx, row = idx / TileQ::kChunks, chunk = idx % TileQ::kChunks;
      loaded.chunks[i] = {0, 0, 0, 0};
      if (row >= work.num_rows || chunk * TileQ::kChunkElements >= p.inputs.head_dim_qk) continue;
      const int64_t at = element_of(p.inputs.q, work, row) + chunk * TileQ::kChunkElements;
      loaded.chunks[i] =
          *reinterpret_cast<const uint4*>(static_cast<const char*>(p.inputs.q.data) + at * kElementBytes);
    }
    return loaded;
  }
  __device__ __forceinline__ void store_queries(const QueryChunks& loaded, int first = 0) const {
    const bool is_negative = p.scores.scale < 0;
    const int first_idx = first * kThreads + thread_of_queries();
#pragma unroll
    for (int i = 0; i < kChunksAtOnce; ++i) {
      const int idx = i * kThreads + first_idx, row = idx / TileQ::kChunks, chunk = idx % TileQ::kChunks;
      if (row >= C.rows) continue;
      const uint4& words = loaded.chunks[i];
      store_query_words<E, kCache, TileQ>(base + kAt.queries, row, chunk,
                                          {prepared_q<E>(words.x, is_negative), prepared_q<E>(words.y, is_negative),
                                           prepared_q<E>(words.z, is_negative), prepared_q<E>(words.w, is_negative)});
    }
  }

  // Copies the chunks that load_queries() did not load.
  __device__ __forceinline__ void copy_later_queries(const DecodeWork& work) const {
#pragma unroll 1
    for (int first = kChunksAtOnce; first < kOwnChunks; first += kChunksAtOnce) {
      store_queries(load_queries(work, first), first);
    }
  }

  // The first element of a query row in q, out or lse.
  template <class Tensor>
  __device__ __forceinline__ int64_t element_of(const Tensor& tensor, const DecodeWork& work, int row) const {
    return row_offset(tensor, {work.unit.batch_idx, head_of(work, row), 0, 0}, work.sequence,
                      p.sequences.group.quotient(work.first_row + row));
  }

  // Maxima of the rows that the lane scores, and sums over its keys. power: the power of two that divides o.
  struct Rows {
    float max[kScoreBlocks][2], sum[kScoreBlocks][2];
    float power = 1;
  };
  using Sums = float[kOwnPieces][kBlocks][4];
  // The exponent's offset for a maximum.
  __device__ __forceinline__ static float offset(float max) { return max == -kInfinity ? 0.0f : max; }

  // Writes rows of a sequence that belong to no query.
  __device__ __forceinline__ void write_rows_without_query(const DecodeWork& work) const {
    if (work.split.idx != 0 || work.unit.row_tile != 0 || rank != 0) return;
    if (work.sequence.len_q == work.sequence.slots_q) return;
#pragma unroll 1
    for (int32_t head = 0; head < p.sequences.group.value; ++head) {
      const WorkTile tile = {work.unit.batch_idx, work.unit.head_kv * p.sequences.group.value + head, 0, 0};
      const ZeroRows<kThreads> rows = {p.output,
                                       tile,
                                       work.sequence,
                                       0,
                                       p.inputs.head_dim_v,
                                       E == Element::f32 || p.output.out_element == Element::f32};
      rows.write(work.sequence.len_q, work.sequence.slots_q, -kInfinity);
    }
  }
};

}  // namespace tessella::device
