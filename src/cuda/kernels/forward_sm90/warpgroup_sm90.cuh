// What the multiplying warpgroups of Hopper's forward kernels have in common: turns, rings, tiles that they skip.
#pragma once

#include "cuda/device/score/output.cuh"
#include "cuda/kernels/forward_sm90/lane_sm90.cuh"

namespace tessella::device {

// TakesTurns: a warpgroup begins its products when the one before it has begun its own, so that one multiplies while
// the others are at their softmax.
template <ForwardSm90Config C, bool TakesTurns>
struct WarpgroupBaseSm90 {
  using Block = BlockSm90<C>;
  using QueryTile = typename Block::QueryTile;
  static constexpr int kWarpgroups = Block::kWarpgroups;
  static constexpr int kTurn = 1, kMeeting = 4;  // the first of the warpgroups' named barriers
  static constexpr int kTurnThreads = 256;       // those who wait for a turn and those who give it

  const Block& block;
  const ForwardParams& p;
  LaneSm90<C> at;
  typename Block::QRing q;
  typename Block::KRing k;
  typename Block::VRing v;

  __device__ __forceinline__ explicit WarpgroupBaseSm90(const Block& of)
      : block(of),
        p(of.p.forward),
        at(of),
        q(of.q_barriers() + at.warpgroup * Block::QRing::kBytes),
        k(of.k_barriers()),
        v(of.v_barriers()) {}

  // Returns when all warps of the warpgroup are here.
  __device__ __forceinline__ void meet() const { ptx::named_wait(kMeeting + at.warpgroup, 128); }
  // Before a warpgroup's first turn.
  __device__ __forceinline__ void begin_turns() const {
    if (TakesTurns && at.warpgroup == 0) ptx::named_arrive(kTurn, kTurnThreads);
  }
  __device__ __forceinline__ void wait_for_turn() const {
    if (TakesTurns) ptx::named_wait(kTurn + at.warpgroup, kTurnThreads);
  }
  __device__ __forceinline__ void give_turn() const {
    const int next = kWarpgroups == 2 ? 1 - at.warpgroup : at.warpgroup < kWarpgroups - 1 ? at.warpgroup + 1 : 0;
    if (TakesTurns) ptx::named_arrive(kTurn + next, kTurnThreads);
  }

  template <class AnyRing>
  __device__ __forceinline__ static void release_slot(const AnyRing& ring) {
    __syncwarp();
    if (ptx::elect()) ring.arrive_empty();
  }
  // A stage of k or v.
  template <class AnyRing>
  __device__ __forceinline__ static void release(AnyRing& ring) {
    release_slot(ring);
    ring.advance();
  }
  __device__ __forceinline__ void release_q() {
    release_slot(q);
    q.advance();
  }

  // The queries take a negative scale's sign.
  __device__ __forceinline__ void negate_q(uint32_t s_q) const {
    constexpr uint32_t kSigns = portable::bits_of(C.score.elements.q) == 8 ? 0x80808080 : 0x80008000;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x % 128) * 16; i < Block::kQBytes; i += 128 * 16) {
      const uint4 words = ptx::load_chunk(s_q + i);
      ptx::store_chunk(s_q + i, {words.x ^ kSigns, words.y ^ kSigns, words.z ^ kSigns, words.w ^ kSigns});
    }
    ptx::fence_async();
    meet();
  }

  // Makes the accumulators of an output zeros, each in the register where it is.
  template <int Blocks>
  __device__ __forceinline__ static void clear_in_place(float (&o)[1][Blocks][4]) {
#pragma unroll
    for (int j = 0; j < Blocks; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        o[0][j][i] = 0;
        ptx::keep_in_place(o[0][j][i]);
      }
    }
  }
  // Ends the lane's rows of the query tile: writes their lse. by: what their output is to be multiplied by.
  // finish(r, has_sink, sink): the result of row r.
  template <class Finish>
  __device__ __forceinline__ void finish_rows(float (&by)[1][2], const Finish& finish) const {
    const QueryTile& of = at.current();
    const portable::OperandParams& lse = p.output.lse;
    const portable::TableParams& sinks = p.scores.sink;
    const bool has_sink = sinks.data != nullptr;
    const float sink = has_sink ? static_cast<const float*>(sinks.data)[of.work.head_idx * sinks.stride] : 0.0f;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const RowResult result = finish(r, has_sink, sink);
      const int32_t query = of.queries.first + at.row(r);
      if (lse.data != nullptr && at.lane % 4 == 0 && query < of.queries.end) {
        static_cast<float*>(lse.data)[row_offset(lse, of.work, of.sequence, query)] = result.lse;
      }
      by[0][r] = C.score.dropout ? result.factor * p.scores.keep_scale : result.factor;
    }
  }
  // The lane's rows of out.
  struct OutRows {
    int64_t at[1][2];
    bool is_there[1][2];
  };
  __device__ __forceinline__ OutRows out_rows(const QueryTile& of) const {
    OutRows rows;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int32_t query = of.queries.first + at.row(r);
      rows.at[0][r] = row_offset(p.output.out, of.work, of.sequence, query);
      rows.is_there[0][r] = query < of.queries.end;
    }
    return rows;
  }

  // Skips the stream's next key tiles.
  __device__ __forceinline__ void skip(int32_t tiles) {
    if constexpr (QueryTile::kSkips) {
#pragma unroll 1
      for (; tiles > 0; --tiles) {
        wait_for_turn();
        give_turn();
        k.wait_full();
        release(k);
        v.wait_full();
        release(v);
      }
    }
  }
};

// A block's part of Hopper's forward kernels: one warpgroup whose warps load, and those that multiply.
template <ForwardSm90Config C, class Warpgroup>
__device__ __forceinline__ void run_block(const ForwardSm90Params& p) {
  using Block = BlockSm90<C>;
  const Block block(p, ptx::dynamic_shared());
  if (threadIdx.x == 0) {
    ptx::prefetch(p.q);
    ptx::prefetch(p.k);
    ptx::prefetch(p.v);
    ptx::prefetch(p.out);
    block.init_barriers();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    ptx::give_registers<Block::kLoadRegisters>();
    const bool loads = Block::kLoadsByWarp || threadIdx.x % 32 == 0;
    const int warp = static_cast<int>(threadIdx.x / 32);
    // In this order the assembler lets threads leave that are done, and does not have them wait for those that load.
    if (warp == 0) {
      block.find_query_tiles();
    } else if (warp == 1) {
      block.write_zero_rows();
    } else if (loads) {
      if (warp == 2) {
        block.load_q_and_k();
      } else {
        block.load_v();
      }
    }
  } else {
    ptx::take_registers<Block::kMultiplyRegisters>();
    Warpgroup warpgroup(block);
    warpgroup.run();
  }
}

}  // namespace tessella::device
