// FlashAttention-3's forward (arXiv 2407.08608, algorithm 2) with Hopper's copy engine and warpgroup matrix
// instructions: bf16 and f16.
//
// A block stays on its multiprocessor and takes one query tile after another; the key tiles of all its query tiles are
// one stream for the warps that load:
//
//   warp 0            finds the next query tile                          ring of query tiles, in shared memory as all
//   warp 1            writes rows that no key reaches
//   warp 2            loads q and k                                      rings of q and k
//   warp 3            loads v                                            ring of v
//   each warpgroup    64 rows of the query tile:
//     begin s = q k(0)^T, o = 0
//     for every key tile i:
//       s is there: features, masks               while o += p v of the tile before runs (kOverlaps)
//       o is there: p = 2^(s - max)               while other warpgroups multiply
//       begin s = q k(i + 1)^T                    matrix unit, scores of the next tile
//       begin o += p v(i)                         matrix unit, probabilities of this one
//     out = o / sum
//
// In other files: the query tile (kernels/forward_sm90/query_tile_sm90.cuh), shared memory and the loading warps
// (kernels/forward_sm90/block_sm90.cuh), which keys a row sees (kernels/forward_sm90/key_walk_sm90.cuh), the softmax
// (kernels/forward_sm90/scores_sm90.cuh).
#pragma once

#include "cuda/device/ptx/wgmma.cuh"
#include "cuda/device/score/output.cuh"
#include "cuda/device/tile/operand.cuh"
#include "cuda/device/tile/tile.cuh"
#include "cuda/kernels/forward_sm90/scores_sm90.cuh"
#include "cuda/kernels/forward_sm90/warpgroup_sm90.cuh"

namespace tessella::device {

// A warpgroup that multiplies.
template <ForwardSm90Config C>
struct WarpgroupSm90 : WarpgroupBaseSm90<C, C.head_dim_v <= 128> {
  static_assert(portable::are_one(C.score.elements));
  using Base = WarpgroupBaseSm90<C, C.head_dim_v <= 128>;
  using Block = BlockSm90<C>;
  using QueryTile = typename Block::QueryTile;
  using Scores = ScoresSm90<C>;
  using Base::block, Base::p, Base::at, Base::q, Base::k, Base::v;
  using Base::meet, Base::wait_for_turn, Base::give_turn, Base::release_slot, Base::release, Base::release_q;
  using Base::negate_q, Base::skip;
  static constexpr portable::ForwardSm90Layout kLayout = Block::kLayout;
  static constexpr int kRowBytes = Block::kRowBytes;
  static constexpr int kBlocks = Scores::kBlocks, kBlocksV = C.head_dim_v / 8, kStepsQ = C.head_dim_qk / 16;
  // Features and masks beside the warpgroup's own o += p v, where they leave registers for that.
  static constexpr bool kOverlaps = !C.score.bias && !C.score.dropout;
  // Queries in registers.
  static constexpr bool kHoldsQ = portable::holds_queries(C);
  // Rows of out are put together where the queries were, if the next ones go elsewhere, and left to the copy engine.
  static constexpr bool kKeepsQ = kLayout.q_slots > 1 && C.head_dim_v <= C.head_dim_qk;

  Scores scores;
  float o[1][kBlocksV][4];
  uint32_t queries[kHoldsQ ? kStepsQ : 1][4];

  __device__ __forceinline__ explicit WarpgroupSm90(const Block& of) : Base(of), scores(of.p.forward) {}

  // Waits for the query tile's queries. A negative scale's sign is theirs from here on.
  __device__ __forceinline__ void take_q() {
    q.wait_full();
    const uint32_t s_q = block.s_q_of(q, at.warpgroup);
    if (p.scores.scale < 0) negate_q(s_q);
    if constexpr (kHoldsQ) {
      using Panel = Tile<Block::kRows, 64, 2>;
      const uint32_t s_row = s_q + Panel::offset(at.warp_row() + at.lane % 16, at.lane / 16);
#pragma unroll
      for (int step = 0; step < kStepsQ; ++step) {
        ptx::load_matrices(queries[step], Panel::advance(s_row, 0, step * 2));
      }
    }
  }
  // s = q k^T
  __device__ __forceinline__ void begin_scores(float (&s)[kBlocks][4]) const {
    using Mma = ptx::WarpgroupMma<C.score.elements.q, C.tile_kv>;
    const Operand<> of_k(block.s_k(k));
    const auto panel = [](int step, int rows) { return step / 4 * kRowBytes * rows + step % 4 * 32; };
    if constexpr (kHoldsQ) {
      ptx::fence_registers();
#pragma unroll
      for (int step = 0; step < kStepsQ; ++step) {
        const uint64_t keys = of_k.at(panel(step, C.tile_kv));
        Mma::template with_registers<ptx::Contiguous::summed>(s, queries[step], keys, step > 0);
      }
    } else {
      const Operand<> of_q(block.s_q_of(q, at.warpgroup));
      ptx::fence_registers();
#pragma unroll
      for (int step = 0; step < kStepsQ; ++step) {
        Mma::with_shared(s, of_q.at(panel(step, Block::kRows)), of_k.at(panel(step, C.tile_kv)), step > 0);
      }
    }
    ptx::commit_products();
  }
  // o += p v
  __device__ __forceinline__ void begin_output() {
    using Mma = ptx::WarpgroupMma<C.score.elements.p, C.head_dim_v>;
    const Operand<> of_v(block.s_v(v), C.tile_kv * kRowBytes);
    ptx::fence_registers();
#pragma unroll
    for (int step = 0; step < kBlocks / 2; ++step) {
      const uint64_t values = of_v.at(step * 16 * kRowBytes);
      Mma::template with_registers<ptx::Contiguous::columns>(o[0], scores.probabilities[step], values, true);
    }
    ptx::commit_products();
  }
  // has_begun: whether begin_output() was called before it.
  __device__ __forceinline__ void end_output(bool has_begun) {
    ptx::wait_products<0>(o[0]);
    if (has_begun) release(v);
  }

  // Keys that no query of the sequence sees may hold anything: they become zeros, as 0 * NaN is NaN; with a tile map
  // those that no query of the query tile sees. Every warpgroup does it for itself.
  __device__ __forceinline__ void clear_unseen_values(int32_t tile) const {
    if (scores.walk.all_are_seen(at, v, tile)) return;
    v.wait_full();
    const uint32_t s_v = block.s_v(v);
    constexpr int kPanelRows = kLayout.v_bytes / kRowBytes;
    for (int i = static_cast<int>(threadIdx.x % 128); i < kPanelRows * 8; i += 128) {
      if (scores.walk.is_seen(at, v, tile, i / 8 % C.tile_kv)) continue;
      ptx::store_chunk(s_v + i * 16, {0, 0, 0, 0});
    }
    ptx::fence_async();
    meet();
  }

  // All of a query tile's output but its last product: the last tile's probabilities are there. had_one: there was a
  // query tile before it.
  __device__ __forceinline__ void multiply(float scale_log2, bool had_one) {
    scores.begin(at);
    take_q();
    int32_t tile = scores.walk.enter(at, k, at.computed().first);
    typename Scores::Tile s;
    k.wait_full();
    wait_for_turn();
    begin_scores(s[0]);
    give_turn();
    // While the scores are computed:
    end_store(had_one);
    Base::clear_in_place(o);
    ptx::wait_products<0>(s[0]);
    for (bool has_output = false;; has_output = true) {
      release(k);
      if (!kKeepsQ && scores.walk.is_last(at, tile)) release_q();
      if (!kOverlaps) end_output(has_output);
      scores.finish_scores(at, s, tile);
      if (kOverlaps) end_output(has_output);
      scores.softmax(at, s, tile, scale_log2, [&](const float(&by)[1][2]) { scale_rows(o, by); });
      if (!scores.walk.is_full(tile)) clear_unseen_values(tile);
      if (scores.walk.is_last(at, tile)) return;
      tile = scores.walk.next(at, k, tile);
      k.wait_full();
      wait_for_turn();
      begin_scores(s[0]);
      v.wait_full();
      begin_output();
      give_turn();
      ptx::wait_products<1>(s[0]);
    }
  }

  // Writes the query tile's lse. by: what its output is to be multiplied by.
  __device__ __forceinline__ void write_lse(float (&by)[1][2]) {
    Base::finish_rows(by, [&](int r, bool has_sink, float sink) {
      return finish(scores.rows.max[r], row_sum(scores.rows.sum[r]), scores.score(at).scale(), has_sink, sink);
    });
    scores.rows = {};
  }
  // The warp's rows of out by the copy engine; they lie where the queries were. It leaves out rows behind the tensor's
  // last one.
  __device__ __forceinline__ void send(const QueryTile& of) const {
    using Panel = Tile<Block::kRows, 64, 2>;
    const uint32_t s_out = block.s_q_of(q, at.warpgroup);
    const uint32_t s_row = s_out + Panel::offset(at.warp_row() + at.lane % 16, at.lane / 16);
#pragma unroll
    for (int j = 0; j < kBlocksV; j += 2) {
      uint32_t words[4];
      Scores::pack(o[0], j, words);
      ptx::store_matrices(Panel::advance(s_row, 0, j), words);
    }
    ptx::fence_async();
    __syncwarp();
    if (at.lane != 0) return;
#pragma unroll
    for (int column = 0; column < C.head_dim_v; column += 64) {
      ptx::store_box(block.p.out, s_out + column / 64 * Panel::kPanelBytes + at.warp_row() * kRowBytes, column,
                     of.sequence.row_q + at.first_of_warp(), of.work.head_idx,
                     Block::batch_of(p.sequences.cu_seqlens_q, of.work.batch_idx));
    }
    ptx::commit_boxes();
  }
  // The lane's rows of out from the accumulators, which are lost. With kKeepsQ the copy engine writes most rows.
  __device__ __forceinline__ void store_from_registers(const QueryTile& of) {
    const auto rows = Base::out_rows(of);
    store_rows<C.score.elements.q, kKeepsQ, kBlocksV>(p.output, p.inputs.head_dim_v, o, rows.at, rows.is_there, 0,
                                                      at.lane);
  }
  // Stores the query tile's out and leaves it. With kKeepsQ its queries' slot is taken until end_store().
  __device__ __forceinline__ void store(const float (&by)[1][2]) {
    scale_rows(o, by);
    const QueryTile& of = at.current();
    const bool ends_tensor = of.sequence.row_q + of.queries.end == p.sequences.total_q;
    const bool may_send = ends_tensor || of.queries.end - at.first_of_warp() >= portable::kWarpRows;
    // No product reads these queries any more: which of A's rows a warp reads PTX does not say.
    if (kKeepsQ && !kHoldsQ) meet();
    if (kKeepsQ && p.output.out_vector_store && p.output.out_element != Element::f32 && may_send) {
      send(of);
    } else {
      store_from_registers(of);
    }
    if (kKeepsQ) q.advance();
    release(at.query_tiles);
    at.row_group = Block::next_row_group(at.row_group);
  }
  // had_one: whether there is a store to end.
  __device__ __forceinline__ void end_store(bool had_one) const {
    if (!kKeepsQ || !had_one) return;
    if (at.lane == 0) ptx::wait_boxes();
    release_slot(q.previous());
  }

  __device__ __forceinline__ void run() {
    Base::begin_turns();
    if (!at.find_query_tile()) return;
    const float scale_log2 = scores.score(at).scale_log2();
    bool had_one = false;
    while (at.find_query_tile()) {
      const WarpgroupTiles& computed = at.computed();
      float by[1][2];
      if (QueryTile::kSkips && computed.first >= computed.end) {
        end_store(had_one);
        q.wait_full();
        if (!kKeepsQ) release_q();
        Base::clear_in_place(o);
        write_lse(by);
      } else {
        skip(computed.skipped_before);
        multiply(scale_log2, had_one);
        v.wait_full();
        begin_output();
        write_lse(by);
        end_output(true);
      }
      const int32_t skipped_after = at.computed().skipped_after;
      store(by);
      had_one = true;
      skip(skipped_after);
    }
    end_store(had_one);
  }
};

template <ForwardSm90Config C>
__global__ void __launch_bounds__(BlockSm90<C>::kThreads, 1) forward_sm90(const __grid_constant__ ForwardSm90Params p) {
  run_block<C, WarpgroupSm90<C>>(p);
}

}  // namespace tessella::device
