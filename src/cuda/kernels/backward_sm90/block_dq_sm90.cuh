// A block of backward_dq_sm90: its queries, its shared memory and the warp that loads.
#pragma once

#include "cuda/kernels/backward_sm90/key_block_sm90.cuh"

namespace tessella::device {

template <BackwardSm90Config C>
struct BlockDqSm90 {
  static constexpr BackwardSm90Config kConfig = C;
  static constexpr int kTileQ = portable::kBackwardTileQ;  // of a warpgroup
  static constexpr int kWarpgroups = portable::kBackwardDqTileQ / kTileQ, kTileKv = portable::backward_tile_kv(C);
  static constexpr int kWarps = 8;  // that multiply
  static constexpr portable::BackwardRegisters kRegisters = portable::registers(C);
  static constexpr bool kHasMap = C.score.mask == MaskLevel::bits;
  static constexpr portable::BackwardDqLayout kLayout = portable::dq_layout(C);
  using Head = HeadTiles<kTileQ, kTileKv, kHasMap>;
  using Queries = Ring<1>;
  // A slot of keys holds a visit too.
  using Keys = Ring<kLayout.k_slots>;
  using Values = Ring<kLayout.v_slots>;

  const BackwardSm90Params& params;
  const BackwardParams& p;
  uint32_t shared;
  BandedSequence<int64_t> sequence;
  int32_t batch_idx, head_idx, first_query;

  // Blocks of the last queries start first: under a causal mask they see the most keys.
  __device__ __forceinline__ BlockDqSm90(const BackwardSm90Params& of, uint32_t address)
      : params(of), p(of.backward), shared(address) {
    const int32_t tiles = (p.sequences.seqlen_q + kWarpgroups * kTileQ - 1) / (kWarpgroups * kTileQ);
    const HeadTile at = head_tile(static_cast<int32_t>(blockIdx.x), p.sequences.batch * p.sequences.heads_q.value,
                                  p.section_heads * p.sequences.group.value, tiles);
    batch_idx = p.sequences.heads_q.quotient(at.head);
    head_idx = at.head - batch_idx * p.sequences.heads_q.value;
    first_query = (tiles - 1 - at.tile) * kWarpgroups * kTileQ;
    sequence = device::sequence(p.sequences, p.masks, batch_idx);
  }
  __device__ bool exists() const { return first_query < sequence.len_q; }

  __device__ uint32_t query_barriers() const { return shared + kLayout.barriers_at; }
  __device__ uint32_t key_barriers() const { return query_barriers() + Queries::kBytes; }
  __device__ uint32_t value_barriers() const { return key_barriers() + Keys::kBytes; }
  static_assert(kLayout.barriers_at + Queries::kBytes + Keys::kBytes + Values::kBytes <= kLayout.bytes);
  __device__ uint32_t s_q(int warpgroup) const { return shared + warpgroup * kLayout.q_bytes; }
  __device__ uint32_t s_d_out(int warpgroup) const {
    return shared + kLayout.d_out_at + warpgroup * kLayout.d_out_bytes;
  }
  __device__ uint32_t s_rows(int warpgroup) const { return shared + kLayout.rows_at + warpgroup * kLayout.rows_bytes; }
  __device__ uint32_t s_k(const Keys& at) const { return shared + kLayout.k_at + at.offset(kLayout.k_bytes); }
  __device__ uint32_t s_v(const Values& at) const { return shared + kLayout.v_at + at.offset(kLayout.v_bytes); }
  __device__ uint32_t s_visits() const { return shared + kLayout.visits_at; }
  __device__ uint32_t s_visit(const Keys& at) const { return s_visits() + at.offset(portable::kVisitBytes); }

  __device__ __forceinline__ void init_barriers() const {
    Queries::init(query_barriers(), 1, 1);
    Keys::init(key_barriers(), 1, kWarps);
    Values::init(value_barriers(), 1, kWarps);
    ptx::publish_barriers();
  }

  // A key tile that some of the block's queries see.
  struct Visit {
    int32_t tile;      // -1: there is none left
    uint32_t flags;    // bit w: each query of warpgroup w sees each of its keys; bit 2 + w: element masks hide some, or
                       // it sees none
    uint32_t seen[2];  // a bit for each of its keys: some query sees it
    __device__ bool is_there() const { return tile >= 0; }
  };
  __device__ Visit visit(const Keys& at) const {
    const uint4 words = ptx::load_chunk(s_visit(at));
    return {static_cast<int32_t>(words.x), words.y, {words.z, words.w}};
  }

  // The block's queries, of both warpgroups. A whole warp calls it.
  __device__ __forceinline__ void load_queries(const Head& head) const {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const Queries queries(query_barriers());
    const int32_t batch_q = p.sequences.cu_seqlens_q.data != nullptr ? 0 : batch_idx;
    // The second warpgroup's rows may lie behind the last query, where nobody has written their data.
    const int warpgroups = first_query + kTileQ < sequence.len_q ? 2 : 1;
    for (int i = lane; warpgroups == 1 && i < kTileQ; i += 32) ptx::store_chunk(s_rows(1) + i * 16, {0, 0, 0, 0});
    __syncwarp();
    if (lane != 0) return;
    queries.arrive_full_expecting(2 * (kLayout.q_bytes + kLayout.d_out_bytes) + warpgroups * kLayout.rows_bytes);
    ptx::copy_bytes(s_rows(0), p.rows + (head.first * kTileQ + first_query) / 2, warpgroups * kLayout.rows_bytes,
                    queries.full());
#pragma unroll 1
    for (int warpgroup = 0; warpgroup < kWarpgroups; ++warpgroup) {
      const int32_t row = sequence.row_q + first_query + warpgroup * kTileQ;
      copy_panels<C.head_dim_qk>(s_q(warpgroup), params.q, queries.full(), kTileQ, row, head_idx, batch_q);
      copy_panels<C.head_dim_v>(s_d_out(warpgroup), params.d_out, queries.full(), kTileQ, row, head_idx, batch_q);
    }
  }

  // Warp 0 loads the queries and every key tile that some of them see. Lane w looks for those of warpgroup w.
  __device__ __forceinline__ void load() const {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const Head head(p, sequence, batch_idx, head_idx);
    load_queries(head);
    const int32_t mine = first_query / kTileQ + lane, head_kv = p.sequences.group.quotient(head_idx);
    const int32_t batch_kv = batch_of_keys(p.sequences, batch_idx);
    KeyTiles keys{};
    if (lane < kWarpgroups && mine * kTileQ < sequence.len_q) keys = head.keys(mine);
    const KeyRange by_band = seen_by_band(sequence);
    Keys k(key_barriers());
    Values v(value_barriers());
    int32_t own = -1;  // the next tile of the lane's warpgroup
#pragma unroll 1
    for (int32_t tile = 0;; ++tile, k.advance(), v.advance()) {
      constexpr int32_t kNone = 0x7FFFFFFF;
      if (own < tile) own = keys.end > 0 ? head.next_key_tile(mine, keys, tile) : kNone;
      if (own >= keys.end) own = kNone;
      tile = min(__shfl_sync(kAllLanes, own, 0), __shfl_sync(kAllLanes, own, 1));
      if (tile == kNone) break;
      const TileClass kind = own == tile ? head.kind(mine, tile) : TileClass::hidden;
      const uint32_t full = __ballot_sync(kAllLanes, kind == TileClass::full && keys.is_full(tile));
      const uint32_t masked = __ballot_sync(kAllLanes, kind != TileClass::full) & 3;
      const int32_t first_key = tile * kTileKv;
      uint32_t seen[2];
      if constexpr (kHasMap) {
        uint4 own = {0, 0, 0, 0};
        if (kind != TileClass::hidden) own = head.seen(mine, tile);
        seen[0] = __reduce_or_sync(kAllLanes, own.x);
        seen[1] = __reduce_or_sync(kAllLanes, own.y);
      } else {
        seen[0] = seen_bits(by_band, first_key, p.masks.keep_first);
        seen[1] = seen_bits(by_band, first_key + 32, p.masks.keep_first);
      }
      k.wait_empty();
      if (lane == 0) {
        ptx::store_chunk(s_visit(k), {static_cast<uint32_t>(tile), full | masked << 2, seen[0], seen[1]});
        k.arrive_full_expecting(kLayout.k_bytes);
        copy_panels<C.head_dim_qk>(s_k(k), params.k, k.full(), kTileKv, sequence.row_kv + first_key, head_kv, batch_kv);
      }
      v.wait_empty();
      if (lane == 0) {
        v.arrive_full_expecting(kLayout.v_bytes);
        copy_panels<C.head_dim_v>(s_v(v), params.v, v.full(), kTileKv, sequence.row_kv + first_key, head_kv, batch_kv);
      }
    }
    k.wait_empty();
    if (lane != 0) return;
    ptx::store_chunk(s_visit(k), {~0u, 0, 0, 0});
    k.arrive_full();
  }
};

}  // namespace tessella::device
