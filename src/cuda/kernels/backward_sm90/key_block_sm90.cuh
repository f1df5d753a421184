// What a block of backward_sm90 with a key tile of its own has: shared memory, the ring of query tiles and the warp
// that fills it.
#pragma once

#include "cuda/device/ptx/shared.cuh"
#include "cuda/device/ptx/tensor_copy.cuh"
#include "cuda/device/schedule/key_tickets.cuh"
#include "cuda/device/schedule/query_tiles.cuh"
#include "cuda/device/tile/ring.cuh"
#include "cuda/kernels/backward_sm90/params.cuh"

namespace tessella::device {

using portable::BackwardSm90Config;
using portable::BackwardSm90Params;
using portable::MaskLevel;

// Columns of a box of a tensor, 128 bytes: a panel.
inline constexpr int kPanelColumns = 64, kPanelRowBytes = 128;

__device__ __forceinline__ void prefetch_maps(const BackwardSm90Params& p) {
  ptx::prefetch(p.q);
  ptx::prefetch(p.k);
  ptx::prefetch(p.v);
  ptx::prefetch(p.d_out);
}

// Copies `rows` rows from `row` on, panel by panel.
template <int Columns>
__device__ __forceinline__ void copy_panels(uint32_t to, const portable::TensorMap& map, uint32_t barrier, int32_t rows,
                                            int32_t row, int32_t head, int32_t batch) {
#pragma unroll
  for (int column = 0; column < Columns; column += kPanelColumns) {
    ptx::copy_box(to + column / kPanelColumns * rows * kPanelRowBytes, map, barrier, column, row, head, batch);
  }
}

// Keys that some query of the sequence sees by the band alone.
template <class Int>
__device__ __forceinline__ KeyRange seen_by_band(const BandedSequence<Int>& sequence) {
  return {row_keys(sequence, 0).begin, row_keys(sequence, sequence.len_q - 1).end};
}
// A bit for each of 32 keys from first_key on: whether it is in the range. A whole warp calls it.
__device__ __forceinline__ uint32_t seen_bits(const KeyRange& range, int32_t first_key, int32_t keep_first) {
  return __ballot_sync(kAllLanes, range.sees(first_key + static_cast<int32_t>(threadIdx.x % 32), keep_first));
}

template <BackwardSm90Config C>
struct KeyBlockSm90 {
  static constexpr BackwardSm90Config kConfig = C;
  static constexpr int kTileQ = portable::kBackwardTileQ, kTileKv = portable::backward_tile_kv(C);
  static constexpr int kWarps = 8;  // that multiply
  static constexpr portable::BackwardRegisters kRegisters = portable::registers(C);
  static constexpr int kRowBytes = kPanelRowBytes;
  static constexpr portable::BackwardSm90Layout kLayout = portable::layout(C);
  static constexpr bool kHasMap = C.score.mask == MaskLevel::bits;
  using Visited = VisitedQueryTiles<kTileQ, kTileKv, kHasMap, VisitOrder::by_tile>;
  static_assert(Visited::kWords <= portable::kBackwardWords);
  using Head = typename Visited::Head;
  using Keys = Ring<1>;
  // A slot holds q, d_out, the rows and the visit.
  using Queries = Ring<kLayout.stages>;

  const BackwardSm90Params& params;
  const BackwardParams& p;
  uint32_t shared;
  // The sequence of the block's key tile; take_ticket() sets it.
  BandedSequence<int64_t> sequence;
  int32_t batch_idx = 0, head_kv = 0, key_tile = 0, first_key = 0;

  __device__ __forceinline__ KeyBlockSm90(const BackwardSm90Params& of, uint32_t address)
      : params(of), p(of.backward), shared(address) {}

  __device__ uint32_t key_barriers() const { return shared + kLayout.barriers_at; }
  __device__ uint32_t query_barriers() const { return key_barriers() + Keys::kBytes; }
  __device__ uint32_t other_barriers() const { return query_barriers() + Queries::kBytes; }
  __device__ uint32_t s_k() const { return shared; }
  __device__ uint32_t s_v() const { return shared + kLayout.v_at; }
  __device__ uint32_t s_q(const typename Queries::Base& at) const {
    return shared + kLayout.q_at + at.offset(kLayout.q_bytes);
  }
  __device__ uint32_t s_d_out(const typename Queries::Base& at) const {
    return shared + kLayout.d_out_at + at.offset(kLayout.d_out_bytes);
  }
  __device__ uint32_t s_rows(const typename Queries::Base& at) const {
    return shared + kLayout.rows_at + at.offset(kLayout.rows_bytes);
  }
  __device__ uint32_t s_visit(const typename Queries::Base& at) const {
    return shared + kLayout.visits_at + at.offset(portable::kVisitBytes);
  }
  __device__ uint32_t s_words() const { return shared + kLayout.words_at; }
  __device__ uint32_t s_key_rows() const { return shared + kLayout.key_rows_at; }
  __device__ uint32_t s_seen() const { return shared + kLayout.seen_at; }

  __device__ __forceinline__ void take_ticket() {
    const KeyTicket ticket = take_key_ticket(p, s_words());
    batch_idx = ticket.batch_idx;
    head_kv = ticket.head_kv;
    key_tile = ticket.key_tile;
    sequence = device::sequence(p.sequences, p.masks, batch_idx);
    first_key = key_tile * kTileKv;
  }
  // Where dK and dV of the block go, as load() wrote it: registers are short.
  struct KeyRows {
    int32_t batch_idx, head_kv, first_row, rows;
  };
  __device__ KeyRows key_rows() const {
    const uint4 words = ptx::load_chunk(s_key_rows());
    return {static_cast<int32_t>(words.x), static_cast<int32_t>(words.y), static_cast<int32_t>(words.z),
            static_cast<int32_t>(words.w)};
  }

  // The visit in a stage, as load() wrote it.
  __device__ QueryVisit visit(const typename Queries::Base& at) const {
    const uint4 words = ptx::load_chunk(s_visit(at));
    const auto rest = static_cast<int32_t>(words.z);
    return {static_cast<int32_t>(words.x),
            static_cast<int32_t>(words.y),
            rest >> 3,
            (rest & 1) != 0,
            (rest & 2) != 0,
            (rest & 4) != 0};
  }

  // Bits of the tile's keys that some query of the sequence sees, of any head of the group. A whole warp calls it.
  __device__ __forceinline__ uint4 seen_keys() const {
    uint32_t words[4];
    if constexpr (kHasMap) {
      const auto lane = static_cast<int32_t>(threadIdx.x % 32);
      const int32_t group = p.sequences.group.value, tiles = (sequence.len_q + kTileQ - 1) / kTileQ;
      uint4 seen = {0, 0, 0, 0};
#pragma unroll 1
      for (int32_t i = lane; i < group * tiles; i += 32) {
        const int32_t of = i / tiles, tile = i - of * tiles;
        const Head head(p, sequence, batch_idx, head_kv * group + of);
        if (!head.keys(tile).sees(key_tile) || head.kind(tile, key_tile) == TileClass::hidden) continue;
        const uint4 own = head.seen(tile, key_tile);
        seen = {seen.x | own.x, seen.y | own.y, seen.z | own.z, seen.w | own.w};
      }
      words[0] = __reduce_or_sync(kAllLanes, seen.x);
      words[1] = __reduce_or_sync(kAllLanes, seen.y);
      words[2] = __reduce_or_sync(kAllLanes, seen.z);
      words[3] = __reduce_or_sync(kAllLanes, seen.w);
    } else {
      const KeyRange seen = seen_by_band(sequence);
#pragma unroll
      for (int word = 0; word < 4; ++word) words[word] = seen_bits(seen, first_key + word * 32, p.masks.keep_first);
    }
    return {words[0], words[1], words[2], words[3]};
  }

  // Warp 0 loads keys and values once, then each query tile that sees some of the keys, and ends with `ends` empty
  // visits.
  __device__ __forceinline__ void load(int ends) const {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const uint4 seen = C.apart ? uint4{} : seen_keys();  // only dQ sums over keys
    if (lane == 0) {
      ptx::store_chunk(s_seen(), {seen.x, seen.y, seen.z, seen.w});
      ptx::store_chunk(s_key_rows(), {static_cast<uint32_t>(batch_idx), static_cast<uint32_t>(head_kv),
                                      static_cast<uint32_t>(sequence.row_kv + first_key),
                                      static_cast<uint32_t>(sequence.len_kv - first_key)});
      const Keys keys(key_barriers());
      const int32_t batch_kv = batch_of_keys(p.sequences, batch_idx), row = sequence.row_kv + first_key;
      keys.arrive_full_expecting(kLayout.k_bytes + kLayout.v_bytes);
      copy_panels<C.head_dim_qk>(s_k(), params.k, keys.full(), kTileKv, row, head_kv, batch_kv);
      copy_panels<C.head_dim_v>(s_v(), params.v, keys.full(), kTileKv, row, head_kv, batch_kv);
    }
    const Visited visited(p, sequence, batch_idx, key_tile, head_kv * p.sequences.group.value, s_words());
    visited.begin();
    Queries queries(query_barriers());
#pragma unroll 1
    for (;; queries.advance()) {
      visited.next(0);
      const QueryVisit next = visited.visit(0);
      queries.wait_empty();
      if (!next.is_there()) break;
      if (lane != 0) continue;
      const uint32_t flags = (next.is_full ? 1u : 0u) | (next.has_idle ? 2u : 0u) | (next.has_elements ? 4u : 0u);
      ptx::store_chunk(s_visit(queries), {static_cast<uint32_t>(next.head_idx), static_cast<uint32_t>(next.tile),
                                          static_cast<uint32_t>(next.next_key_tile) << 3 | flags, 0});
      queries.arrive_full_expecting(kLayout.q_bytes + kLayout.d_out_bytes + kLayout.rows_bytes);
      ptx::copy_bytes(s_rows(queries), p.rows + (visited.of_head(next.head_idx).first + next.tile) * (kTileQ / 2),
                      kLayout.rows_bytes, queries.full());
      const int32_t row = sequence.row_q + next.tile * kTileQ;
      const int32_t batch_q = p.sequences.cu_seqlens_q.data != nullptr ? 0 : batch_idx;
      copy_panels<C.head_dim_qk>(s_q(queries), params.q, queries.full(), kTileQ, row, next.head_idx, batch_q);
      copy_panels<C.head_dim_v>(s_d_out(queries), params.d_out, queries.full(), kTileQ, row, next.head_idx, batch_q);
    }
#pragma unroll 1
    for (int i = 0; i < ends; ++i, queries.advance()) {
      queries.wait_empty();
      if (lane != 0) continue;
      ptx::store_chunk(s_visit(queries), {~0u, 0, 0, 0});
      queries.arrive_full();
    }
  }
};

// Begins a block and takes a key tile for it. False if no key is left in its sequence.
template <class Block>
__device__ __forceinline__ bool take_key_tile(Block& block) {
  if (threadIdx.x == 0) {
    prefetch_maps(block.params);
    block.init_barriers();
  }
  block.take_ticket();
  return block.first_key < block.sequence.len_kv;
}

}  // namespace tessella::device
