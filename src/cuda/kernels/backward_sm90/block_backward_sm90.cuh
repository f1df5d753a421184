// A block of backward_sm90: beside what key_block_sm90.cuh holds, dQ in shared memory and the warps that add it to its
// sums in memory.
#pragma once

#include "cuda/device/ptx/global.cuh"
#include "cuda/kernels/backward_sm90/key_block_sm90.cuh"

namespace tessella::device {

template <BackwardSm90Config C>
struct BlockBackwardSm90 : KeyBlockSm90<C> {
  using Base = KeyBlockSm90<C>;
  using Base::Base, Base::kLayout, Base::kTileQ, Base::kTileKv, Base::kWarps;
  using Base::key_barriers, Base::query_barriers, Base::visit;
  using Base::p, Base::shared, Base::sequence, Base::batch_idx, Base::key_tile;
  using typename Base::Head, typename Base::Keys, typename Base::Queries;
  // A second ring over query tiles, of dQ.
  using Sums = Ring<portable::kBackwardAdders>;
  // The positions of an adder, which takes every kBackwardAdders-th query tile.
  using AddedQueries = Ring<kLayout.stages, 1, portable::kBackwardAdders>;
  using AddedSums = Ring<portable::kBackwardAdders, 1, portable::kBackwardAdders>;

  __device__ uint32_t sum_barriers() const { return Base::other_barriers(); }
  static_assert(kLayout.barriers_at + Keys::kBytes + Queries::kBytes + Sums::kBytes <= kLayout.bytes);
  __device__ uint32_t s_dq(const typename Sums::Base& at) const {
    return shared + kLayout.dq_at + at.offset(kLayout.dq_bytes);
  }
  __device__ uint32_t s_d_scores(int buffer) const {
    return shared + kLayout.scores_at + buffer * (kTileQ * kTileKv * 2);
  }

  __device__ __forceinline__ void init_barriers() const {
    Keys::init(key_barriers(), 1, 1);
    Queries::init(query_barriers(), 1, kWarps + 1);
    Sums::init(sum_barriers(), kWarps, 1);
    ptx::publish_barriers();
  }

  // Adds dQ to its sums in memory: of every query tile whose visit comes to the adder's slot of the rings. Before it
  // waits for the block's turn at the tile, and behind it passes the turn on (takes_turns). One lane of a warp calls
  // it.
  __device__ __forceinline__ void add_dq(int adder, bool wants_dq, bool takes_turns) const {
    AddedQueries queries(query_barriers(), adder);
    AddedSums sums(sum_barriers(), adder);
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
      ptx::fence_async_memory(s_dq(sums), kLayout.dq_bytes);
      if (wants_dq) {
        float* to = p.dq_sums + tile * (kTileQ * C.head_dim_qk);
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
      queries.advance();
      sums.advance();
    }
  }
};

}  // namespace tessella::device
