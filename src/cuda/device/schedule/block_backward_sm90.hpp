// A block of backward_sm90: its key tile, its shared memory, the rings through which its warps pass buffers, the warp
// that loads and the warp that orders the additions to dQ.
#pragma once

#include "cuda/device/ptx/global.hpp"
#include "cuda/device/ptx/shared.hpp"
#include "cuda/device/ptx/tensor_copy.hpp"
#include "cuda/device/schedule/key_tickets.hpp"
#include "cuda/device/schedule/query_tiles.hpp"
#include "cuda/device/tile/ring.hpp"
#include "portable/backward_sm90.hpp"

namespace tessella::device {

using portable::BackwardRow;
using portable::BackwardSm90Config;
using portable::BackwardSm90Params;
using portable::MaskLevel;

template <BackwardSm90Config C>
struct BlockBackwardSm90 {
  static constexpr int kTileQ = portable::kBackwardTileQ, kTileKv = portable::kBackwardTileKv;
  static constexpr int kWarps = 8;  // that multiply
  static constexpr int kLoadRegisters = 40, kMultiplyRegisters = 232;
  static constexpr int kRowBytes = 128;  // of a panel of 64 columns
  static constexpr portable::BackwardSm90Layout kLayout = portable::layout(C);
  using Visited = VisitedQueryTiles<kTileQ, kTileKv, C.score.mask == MaskLevel::bits>;
  static_assert(Visited::kWords <= portable::kBackwardWords);
  using Head = typename Visited::Head;
  using Keys = Ring<1>;
  // Two rings over query tiles advance together. A slot of the query ring holds q, d_out, the rows and the visit. A
  // slot of the turn ring is full when the block may add to the tile's dQ, and empty when it has added.
  using Queries = Ring<kLayout.stages>;

  const BackwardSm90Params& params;
  const BackwardParams& p;
  uint32_t shared;
  // The sequence of the block's key tile; take_ticket() sets it.
  BandedSequence<int64_t> sequence;
  int32_t batch_idx = 0, head_kv = 0, key_tile = 0, first_key = 0;

  __device__ __forceinline__ BlockBackwardSm90(const BackwardSm90Params& of, uint32_t address)
      : params(of), p(of.backward), shared(address) {}

  __device__ uint32_t key_barriers() const { return shared + kLayout.barriers_at; }
  __device__ uint32_t query_barriers() const { return key_barriers() + Keys::kBytes; }
  __device__ uint32_t turn_barriers() const { return query_barriers() + Queries::kBytes; }
  static_assert(kLayout.barriers_at + Keys::kBytes + 2 * Queries::kBytes <= kLayout.bytes);
  __device__ uint32_t s_k() const { return shared; }
  __device__ uint32_t s_v() const { return shared + kLayout.v_at; }
  __device__ uint32_t s_q(const Queries& at) const { return shared + kLayout.q_at + at.offset(kLayout.q_bytes); }
  __device__ uint32_t s_d_out(const Queries& at) const {
    return shared + kLayout.d_out_at + at.offset(kLayout.q_bytes);
  }
  __device__ uint32_t s_rows(const Queries& at) const {
    return shared + kLayout.rows_at + at.offset(kTileQ * static_cast<uint32_t>(sizeof(BackwardRow)));
  }
  __device__ uint32_t s_visit(const Queries& at) const {
    return shared + kLayout.visits_at + at.offset(portable::kVisitBytes);
  }
  __device__ uint32_t s_has_sums(const Queries& at) const { return shared + kLayout.turns_at + at.offset(8); }
  __device__ uint32_t s_d_scores(int buffer) const {
    return shared + kLayout.d_scores_at + buffer * (kTileQ * kTileKv * 2);
  }
  __device__ uint32_t s_words() const { return shared + kLayout.words_at; }

  __device__ __forceinline__ void init_barriers() const {
    Keys::init(key_barriers(), 1, 1);
    Queries::init(query_barriers(), 1, kWarps + (C.in_order ? 1 : 0));
    Queries::init(turn_barriers(), 1, kWarps);
    ptx::publish_barriers();
  }

  __device__ __forceinline__ void take_ticket() {
    const KeyTicket ticket = take_key_ticket(p, s_words());
    batch_idx = ticket.batch_idx;
    head_kv = ticket.head_kv;
    key_tile = ticket.key_tile;
    sequence = device::sequence(p.forward, batch_idx);
    first_key = key_tile * kTileKv;
  }
  __device__ Head head(int32_t head_idx) const { return {p, sequence, batch_idx, head_idx}; }
  __device__ int64_t query_tile(const QueryVisit& visit) const { return head(visit.head_idx).first + visit.tile; }

  // The visit in a stage, as load() wrote it.
  __device__ QueryVisit visit(const Queries& at) const {
    const uint4 words = ptx::load_chunk(s_visit(at));
    const auto rest = static_cast<int32_t>(words.z);
    return {static_cast<int32_t>(words.x),
            static_cast<int32_t>(words.y),
            rest >> 3,
            (rest & 1) != 0,
            (rest & 2) != 0,
            (rest & 4) != 0};
  }

  __device__ __forceinline__ void copy_tile(uint32_t to, const portable::TensorMap& map, uint32_t barrier, int32_t rows,
                                            int32_t row, int32_t head, int32_t batch) const {
#pragma unroll
    for (int column = 0; column < C.head_dim; column += 64) {
      ptx::copy_box(to + column / 64 * rows * kRowBytes, map, barrier, column, row, head, batch);
    }
  }

  // Warp 0 loads keys and values once, then each query tile that sees some of the keys, and ends with an empty visit.
  __device__ __forceinline__ void load() const {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const bool is_packed_q = p.forward.cu_seqlens_q.data != nullptr;
    const int32_t batch_q = is_packed_q ? 0 : batch_idx;
    if (lane == 0) {
      const Keys keys(key_barriers());
      const int32_t batch_kv = batch_of_keys(p.forward, batch_idx);
      keys.arrive_full_expecting(2 * kLayout.k_bytes);
      copy_tile(s_k(), params.k, keys.full(), kTileKv, sequence.row_kv + first_key, head_kv, batch_kv);
      copy_tile(s_v(), params.v, keys.full(), kTileKv, sequence.row_kv + first_key, head_kv, batch_kv);
    }
    const Visited visited(p, sequence, batch_idx, key_tile, head_kv * p.forward.group.value, s_words());
    visited.begin();
    Queries queries(query_barriers());
#pragma unroll 1
    for (int slot = 0;; slot = (slot + 1) % Visited::kSlots, queries.advance()) {
      visited.next(slot);
      const QueryVisit next = visited.visit(slot);
      queries.wait_empty();
      const uint32_t flags = (next.is_full ? 1u : 0u) | (next.has_idle ? 2u : 0u) | (next.has_elements ? 4u : 0u);
      if (lane == 0) {
        ptx::store_chunk(s_visit(queries), {static_cast<uint32_t>(next.head_idx), static_cast<uint32_t>(next.tile),
                                            static_cast<uint32_t>(next.next_key_tile) << 3 | flags, 0});
      }
      if (!next.is_there()) {
        if (lane == 0) queries.arrive_full();
        return;
      }
      const BackwardRow* rows = p.rows + query_tile(next) * kTileQ;
#pragma unroll
      for (int i = 0; i < kTileQ; i += 32) {
        const uint4 row = *reinterpret_cast<const uint4*>(rows + i + lane);
        ptx::store_chunk(s_rows(queries) + (i + lane) * 16, {row.x, row.y, row.z, row.w});
      }
      __syncwarp();
      if (lane != 0) continue;
      queries.arrive_full_expecting(2 * kLayout.q_bytes);
      const int32_t row = sequence.row_q + next.tile * kTileQ;
      copy_tile(s_q(queries), params.q, queries.full(), kTileQ, row, next.head_idx, batch_q);
      copy_tile(s_d_out(queries), params.d_out, queries.full(), kTileQ, row, next.head_idx, batch_q);
    }
  }

  // One lane of warp 1 keeps the order in which key tiles add to a query tile's dQ. It waits for the block's turn,
  // tells the multiplying warps, and passes the turn on when they have added.
  __device__ __forceinline__ void keep_turns(bool takes_turns) const {
    Queries queries(query_barriers()), turns(turn_barriers());
#pragma unroll 1
    for (;; queries.advance(), turns.advance()) {
      queries.wait_full();
      const QueryVisit at = visit(queries);
      queries.arrive_empty();
      if (!at.is_there()) return;
      uint32_t* word = p.turns + query_tile(at);
      uint32_t now = portable::kHasSums;
      if (takes_turns) now = ptx::acquire(word, ~portable::kHasSums, static_cast<uint32_t>(key_tile));
      ptx::store_word(s_has_sums(turns), now & portable::kHasSums);
      turns.arrive_full();
      turns.wait_emptied();
      if (!takes_turns) continue;
      ptx::fence_memory();
      ptx::store_to_memory(word, static_cast<uint32_t>(at.next_key_tile) | portable::kHasSums);
    }
  }
};

}  // namespace tessella::device
