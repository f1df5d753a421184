// A block of backward_sm90: its key tile, its shared memory, the rings through which its warps pass buffers, the warp
// that loads and the warps that add dQ to its sums in memory.
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
  static constexpr int kLoadRegisters = 24, kMultiplyRegisters = 240;
  static constexpr int kRowBytes = 128;  // of a panel of 64 columns
  static constexpr portable::BackwardSm90Layout kLayout = portable::layout(C);
  using Visited = VisitedQueryTiles<kTileQ, kTileKv, C.score.mask == MaskLevel::bits, VisitOrder::by_tile>;
  static_assert(Visited::kWords <= portable::kBackwardWords);
  using Head = typename Visited::Head;
  using Keys = Ring<1>;
  // Two rings over query tiles. A slot of the first holds q, d_out, the rows and the visit; of the second, dQ.
  using Queries = Ring<kLayout.stages>;
  using Sums = Ring<portable::kBackwardAdders>;

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
  __device__ uint32_t sum_barriers() const { return query_barriers() + Queries::kBytes; }
  static_assert(kLayout.barriers_at + Keys::kBytes + Queries::kBytes + Sums::kBytes <= kLayout.bytes);
  __device__ uint32_t s_k() const { return shared; }
  __device__ uint32_t s_v() const { return shared + kLayout.v_at; }
  __device__ uint32_t s_q(const Queries& at) const { return shared + kLayout.q_at + at.offset(kLayout.q_bytes); }
  __device__ uint32_t s_d_out(const Queries& at) const {
    return shared + kLayout.d_out_at + at.offset(kLayout.q_bytes);
  }
  __device__ uint32_t s_rows(const Queries& at) const {
    return shared + kLayout.rows_at + at.offset(kLayout.rows_bytes);
  }
  __device__ uint32_t s_visit(const Queries& at) const {
    return shared + kLayout.visits_at + at.offset(portable::kVisitBytes);
  }
  __device__ uint32_t s_dq(const Sums& at) const { return shared + kLayout.dq_at + at.offset(kLayout.dq_bytes); }
  __device__ uint32_t s_d_scores(int buffer) const {
    return shared + kLayout.d_scores_at + buffer * (kTileQ * kTileKv * 2);
  }
  __device__ uint32_t s_words() const { return shared + kLayout.words_at; }
  __device__ uint32_t s_key_rows() const { return shared + kLayout.key_rows_at; }

  __device__ __forceinline__ void init_barriers() const {
    Keys::init(key_barriers(), 1, 1);
    Queries::init(query_barriers(), 1, kWarps + 1);
    Sums::init(sum_barriers(), kWarps, 1);
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

  // Warp 0 loads keys and values once, then each query tile that sees some of the keys, and ends with an empty
  // visit for each adder.
  __device__ __forceinline__ void load() const {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    if (lane == 0) {
      ptx::store_chunk(s_key_rows(), {static_cast<uint32_t>(batch_idx), static_cast<uint32_t>(head_kv),
                                      static_cast<uint32_t>(sequence.row_kv + first_key),
                                      static_cast<uint32_t>(sequence.len_kv - first_key)});
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
    for (;; queries.advance()) {
      visited.next(0);
      const QueryVisit next = visited.visit(0);
      queries.wait_empty();
      if (!next.is_there()) break;
      if (lane != 0) continue;
      const uint32_t flags = (next.is_full ? 1u : 0u) | (next.has_idle ? 2u : 0u) | (next.has_elements ? 4u : 0u);
      ptx::store_chunk(s_visit(queries), {static_cast<uint32_t>(next.head_idx), static_cast<uint32_t>(next.tile),
                                          static_cast<uint32_t>(next.next_key_tile) << 3 | flags, 0});
      queries.arrive_full_expecting(2 * kLayout.q_bytes + kLayout.rows_bytes);
      ptx::copy_bytes(s_rows(queries), p.rows + (visited.of_head(next.head_idx).first + next.tile) * kTileQ,
                      kLayout.rows_bytes, queries.full());
      const int32_t row = sequence.row_q + next.tile * kTileQ;
      const int32_t batch_q = p.forward.cu_seqlens_q.data != nullptr ? 0 : batch_idx;
      copy_tile(s_q(queries), params.q, queries.full(), kTileQ, row, next.head_idx, batch_q);
      copy_tile(s_d_out(queries), params.d_out, queries.full(), kTileQ, row, next.head_idx, batch_q);
    }
#pragma unroll 1
    for (int i = 0; i < portable::kBackwardAdders; ++i, queries.advance()) {
      queries.wait_empty();
      if (lane != 0) continue;
      ptx::store_chunk(s_visit(queries), {~0u, 0, 0, 0});
      queries.arrive_full();
    }
  }

  // Adds dQ to its sums in memory: of every query tile whose visit comes to the adder's slot of the rings. Before it
  // waits for the block's turn at the tile, and behind it passes the turn on (takes_turns). One lane of a warp calls
  // it.
  __device__ __forceinline__ void add_dq(int adder, bool wants_dq, bool takes_turns) const {
    Queries queries(query_barriers());
    Sums sums(sum_barriers());
    for (int i = 0; i < adder; ++i) advance(queries, sums);
#pragma unroll 1
    for (;;) {
      queries.wait_full();
      const QueryVisit at = visit(queries);
      queries.arrive_empty();
      if (!at.is_there()) return;
      const int64_t tile = Head(p, sequence, batch_idx, at.head_idx).first + at.tile;
      uint32_t* turn = p.turns + tile;
      uint32_t now = portable::kHasSums;
      if (takes_turns) now = ptx::acquire(turn, ~portable::kHasSums, static_cast<uint32_t>(key_tile));
      sums.wait_full();
      ptx::fence_async(s_dq(sums), kLayout.dq_bytes);
      if (wants_dq) {
        float* to = p.dq_sums + tile * (kTileQ * C.head_dim);
        if ((now & portable::kHasSums) != 0) {
          ptx::add_floats(to, s_dq(sums), kLayout.dq_bytes);
        } else {
          ptx::store_floats(to, s_dq(sums), kLayout.dq_bytes);
        }
        ptx::commit_boxes();
        ptx::wait_boxes();
      }
      sums.arrive_empty();
      if (takes_turns) {
        ptx::wait_boxes_written();
        ptx::fence_memory();
        ptx::store_to_memory(turn, static_cast<uint32_t>(at.next_key_tile) | portable::kHasSums);
      }
      for (int i = 0; i < portable::kBackwardAdders; ++i) advance(queries, sums);
    }
  }

 private:
  __device__ static void advance(Queries& queries, Sums& sums) {
    queries.advance();
    sums.advance();
  }
};

}  // namespace tessella::device
