// FlashAttention-3's forward (arXiv 2407.08608, algorithm 2) with Hopper's copy engine and warpgroup matrix
// instructions: bf16 and f16.
//
// A block stays on its multiprocessor and takes tile after tile of queries; its key tiles, those of all its query tiles
// one behind the other, are one stream for those who load:
//
//   warp 0            finds the next tile of queries                     ring of items, as all rings in shared memory
//   warp 1            writes rows that no key reaches
//   warp 2            loads q and k                                      rings of q and k
//   warp 3            loads v                                            ring of v
//   each warpgroup    64 queries of the tile:
//     begin s = q k(0)^T, o = 0
//     for every key tile i:
//       s is there: features, masks               while o += p v of the tile before runs (kOverlaps)
//       o is there: p = 2^(s - max)               while other warpgroups multiply (kInParts: as o's parts are there)
//       sums of p too large: the same with new maxima, o rescaled
//       begin s = q k(i + 1)^T                    matrix unit, scores of the next tile
//       begin o += p v(i)                         matrix unit, probabilities of this one
//     out = o / sum
#pragma once

#include "cuda/device/ptx/wgmma.hpp"
#include "cuda/device/score/scores_sm90.hpp"
#include "cuda/device/tile/operand.hpp"
#include "cuda/device/tile/output.hpp"
#include "cuda/device/tile/tile.hpp"

namespace tessella::device {

// A warpgroup that multiplies.
template <ForwardSm90Config C>
struct WarpgroupSm90 : ScoresSm90<C> {
  using Scores = ScoresSm90<C>;
  using Scores::block, Scores::p, Scores::warpgroup, Scores::lane, Scores::part, Scores::items, Scores::probabilities,
      Scores::rows, Scores::full_end, Scores::first_of_warp, Scores::note, Scores::current, Scores::share,
      Scores::score_of, Scores::warp_row, Scores::row, Scores::is_full, Scores::find_visible, Scores::pack,
      Scores::kHasMap, Scores::kBlocks;
  using typename Scores::Block, typename Scores::Item, typename Scores::Items, typename Scores::Score;
  using QRing = typename Block::QRing;
  using Visited = typename Block::Visited;
  // Found by measuring (docs/lab/forward_sm90.md). A warpgroup begins its products when the one before it has begun its
  // own, so that one multiplies while the others are at their softmax. Those that find diagonals are faster without.
  static constexpr bool kTakesTurns = C.head_dim_v <= 128 && !Scores::kFindsDiagonals;
  // Features and masks beside the warpgroup's own o += p v, where they leave registers for that.
  static constexpr bool kOverlaps = !C.score.bias && !C.score.dropout;
  static_assert(kOverlaps || !Scores::kInParts);
  static_assert(!Block::kSumsByProduct || (kOverlaps && !Scores::kInParts), "sums are wanted before the softmax");
  // Rows of out are put together where the queries were, if the next ones go elsewhere, and left to the copy engine.
  static constexpr bool kKeepsQ = Block::kLayout.q_slots > 1 && C.head_dim_v <= C.head_dim_qk;
  static constexpr int kWarpgroups = Block::kWarpgroups;
  static constexpr int kBlocksV = C.head_dim_v / 8;
  static constexpr portable::ForwardSm90Layout kLayout = Block::kLayout;
  static constexpr int kRowBytes = Block::kRowBytes;
  static constexpr int kTurn = 1, kMeeting = 4;  // the first of the warpgroups' named barriers
  static constexpr int kTurnThreads = 256;       // those who wait for a turn and those who give it

  QRing q;
  typename Block::KRing k;
  typename Block::VRing v;
  static constexpr bool kHoldsQ = portable::holds_queries(C);
  static constexpr bool kMultipliesQ = C.scales_q && !kHoldsQ;  // in shared memory, not in registers
  static constexpr int kStepsQ = C.head_dim_qk / 16;

  // With kSumsByProduct a block behind the columns has each row's sum of probabilities, eight times.
  static constexpr int kBlocksO = kBlocksV + (Block::kSumsByProduct ? 1 : 0);

  float o[1][kBlocksO][4];
  uint32_t queries[kHoldsQ ? kStepsQ : 1][4];

  __device__ __forceinline__ explicit WarpgroupSm90(const Block& of)
      : Scores(of), q(of.q_barriers()), k(of.k_barriers()), v(of.v_barriers()) {}

  __device__ int next_part() const { return !Block::kLeavesOut ? part : part < kWarpgroups - 1 ? part + 1 : 0; }
  __device__ int previous_part() const { return !Block::kLeavesOut ? part : part > 0 ? part - 1 : kWarpgroups - 1; }
  // Returns when all warps of the warpgroup are here.
  __device__ __forceinline__ void meet() const { ptx::named_wait(kMeeting + warpgroup, 128); }

  // Fillers: blocks of the cluster that fill the slot.
  template <int Fillers = 1, class AnyRing>
  __device__ __forceinline__ static void release_slot(const AnyRing& ring) {
    __syncwarp();
    if (!ptx::elect()) return;
    ring.arrive_empty();
#pragma unroll
    for (int i = 1; i < Fillers; ++i) ring.arrive_empty_at((ptx::block_in_cluster() + i) % Fillers);
  }
  // A stage of k or v.
  template <class AnyRing>
  __device__ __forceinline__ void release(AnyRing& ring) const {
    release_slot<C.cluster>(ring);
    ring.advance();
  }
  __device__ __forceinline__ void release_q() {
    release_slot(q.at(part));
    q.advance();
  }

  // Waits for the item at `items` and its bounds. False if there is none left.
  __device__ __forceinline__ bool find_item() const {
    items.at(Block::kBounds).wait_full();
    return current().exists();
  }

  // Waits for the item's queries. The sign of a negative scale is theirs from here on, and the factor of scales_q.
  __device__ __forceinline__ void take_q() {
    q.at(part).wait_full();
    const uint32_t s_q = block.s_q_of(q, part);
    if (kMultipliesQ || (!C.scales_q && p.scale < 0)) multiply_q(s_q);
    if constexpr (kHoldsQ) {
      using Panel = Tile<Block::kRows, 64, 2>;
      const uint32_t s_row = s_q + Panel::offset(warp_row() + lane % 16, lane / 16);
#pragma unroll
      for (int step = 0; step < kStepsQ; ++step) {
        ptx::load_matrices(queries[step], Panel::advance(s_row, 0, step * 2));
        if constexpr (C.scales_q) {
#pragma unroll
          for (uint32_t& pair : queries[step]) pair = ptx::multiply_bf16(pair, q_factor());
        }
      }
    }
  }
  __device__ float q_factor() const { return copysignf(p.softcap.q_factor, p.scale); }
  // The warpgroup's queries at s_q: by q_factor(), or by -1 without scales_q.
  __device__ __forceinline__ void multiply_q(uint32_t s_q) const {
    const auto product = [&](uint32_t pair) {
      constexpr uint32_t kSigns = 0x80008000;
      if constexpr (kMultipliesQ) return ptx::multiply_bf16(pair, q_factor());
      return pair ^ kSigns;
    };
#pragma unroll 1
    for (int at = static_cast<int>(threadIdx.x % 128) * 16; at < Block::kQBytes; at += 128 * 16) {
      const uint4 words = ptx::load_chunk(s_q + at);
      ptx::store_chunk(s_q + at, {product(words.x), product(words.y), product(words.z), product(words.w)});
    }
    ptx::fence_async();
    meet();
  }

  __device__ __forceinline__ void begin_scores(float (&s)[kBlocks][4]) const {
    using Mma = ptx::WarpgroupMma<C.score.element, C.tile_kv>;
    const Operand of_k(block.s_k(k));
    const auto panel = [](int step, int rows) { return step / 4 * kRowBytes * rows + step % 4 * 32; };
    if constexpr (kHoldsQ) {
      ptx::fence_registers();
#pragma unroll
      for (int step = 0; step < kStepsQ; ++step) {
        const uint64_t keys = of_k.at(panel(step, C.tile_kv));
        Mma::template with_registers<ptx::Contiguous::summed>(s, queries[step], keys, step > 0);
      }
    } else {
      const Operand of_q(block.s_q_of(q, part));
      ptx::fence_registers();
#pragma unroll
      for (int step = 0; step < kStepsQ; ++step) {
        Mma::with_shared(s, of_q.at(panel(step, Block::kRows)), of_k.at(panel(step, C.tile_kv)), step > 0);
      }
    }
    ptx::commit_products();
  }

  __device__ __forceinline__ void begin_output() {
    const Operand of_v(block.s_v(v), C.tile_kv * kRowBytes);
    using Mma = ptx::WarpgroupMma<C.score.element, kBlocksO * 8>;
    ptx::fence_registers();
#pragma unroll
    for (int step = 0; step < Scores::kSteps; ++step) {
      Mma::template with_registers<ptx::Contiguous::columns>(o[0], probabilities[step], of_v.at(step * 16 * kRowBytes),
                                                             true);
      if (Scores::kInParts && step + 1 == Scores::kFirstSteps) ptx::commit_products();
    }
    ptx::commit_products();
  }

  // Keys that no query of the sequence sees may hold anything: they become zeros, as 0 * NaN is NaN; with a tile map
  // those that no query of the item sees. Every warpgroup does it for itself.
  __device__ __forceinline__ void clear_unseen_values(int32_t tile) const {
    const Item& item = current();
    const int32_t first = item.first_key(tile);
    if (!kHasMap && first >= item.seen_begin && first + C.tile_kv <= item.seen_end) return;
    v.wait_full();
    const uint32_t s_seen = block.s_note_of_v(v);
    if constexpr (kHasMap) {
      const uint4 seen = ptx::load_chunk(s_seen);
      if ((seen.x & seen.y & seen.z & seen.w) == ~0u) return;
    }
    const uint32_t s_v = block.s_v(v);
    constexpr int kPanelRows = kLayout.v_bytes / kRowBytes;
    for (int i = static_cast<int>(threadIdx.x % 128); i < kPanelRows * 8; i += 128) {
      const int32_t key = i / 8 % C.tile_kv;
      if (kHasMap ? (ptx::load_word(s_seen + key / 32 * 4) >> key % 32 & 1) != 0
                  : KeyRange{item.seen_begin, item.seen_end}.sees(first + key, p.keep_first)) {
        continue;
      }
      ptx::store_chunk(s_v + i * 16, {0, 0, 0, 0});
    }
    ptx::fence_async();
    meet();
  }

  // The first tile of the item at or after `tile`; with a tile map the next of k's stream, which must be the
  // warpgroup's.
  __device__ __forceinline__ int32_t enter(int32_t tile) {
    if constexpr (kHasMap) {
      k.wait_full();
      note = {ptx::load_word(block.s_note_of_k(k))};
      tile = note.tile();
      full_end = note.is_full(part) ? tile + 1 : tile;
      if (!is_full(tile)) find_visible(tile, note.is_partial());
    } else {
      tile = Visited().next(current().tiles, nullptr, tile);
      full_end = share().is_full(tile) ? share().full_end : tile;
    }
    return tile;
  }
  __device__ __forceinline__ bool is_last(int32_t tile) const {
    if constexpr (kHasMap) return note.is_last(part);
    if (is_full(tile) && is_full(tile + 1)) return false;
    return Visited().next(current().tiles, nullptr, tile + 1) >= share().end;
  }

  // Of row r's probabilities; with kSumsByProduct o is there.
  __device__ __forceinline__ float sum(int r) const {
    return Block::kSumsByProduct ? o[0][kBlocksO - 1][r * 2] : row_sum(rows.sum[r]);
  }
  // Writes the item's lse; its last probabilities are there. by: what its output is to be multiplied by.
  __device__ __forceinline__ void write_lse(float (&by)[1][2]) {
    const Item& item = current();
    const bool has_sink = p.sink.data != nullptr;
    const float sink = has_sink ? static_cast<const float*>(p.sink.data)[item.work.head_idx * p.sink.stride] : 0.0f;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const RowResult result = finish(rows.max[r], sum(r), score_of(p, item).scale(), has_sink, sink);
      const int32_t at = item.queries.first + row(r);
      if (p.lse.data != nullptr && lane % 4 == 0 && at < item.queries.end) {
        static_cast<float*>(p.lse.data)[row_offset(p.lse, item.work, item.sequence, at)] = result.lse;
      }
      by[0][r] = C.score.dropout ? result.factor * p.keep_scale : result.factor;
      if constexpr (Score::kRoundsSums) by[0][r] *= of_rounded(rows, r);
    }
    rows = {};
  }
  __device__ __forceinline__ void clear_output() {
#pragma unroll
    for (int j = 0; j < kBlocksO; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        o[0][j][i] = 0;
        ptx::keep_in_place(o[0][j][i]);
      }
    }
  }
  // has_begun: whether begin_output() was called before it.
  __device__ __forceinline__ void end_output(bool has_begun) {
    ptx::wait_products<0>(o[0]);
    if (has_begun) release(v);
  }
  // The warp's rows of out by the copy engine; they lie where the item's queries were. Rows behind the tensor's last
  // one it leaves out.
  __device__ __forceinline__ void send(const Item& item) const {
    using Panel = Tile<Block::kRows, 64, 2>;
    const uint32_t s_out = block.s_q_of(q, part);
    // The row's place is take_q()'s, and took a register since: a softcap and ALiBi have none left for it.
    const int own = C.score.softcap || C.score.alibi ? ptx::lane_anew() : lane;
    const uint32_t s_row = s_out + Panel::offset(warp_row() + own % 16, own / 16);
#pragma unroll
    for (int j = 0; j < kBlocksV; j += 2) {
      uint32_t words[4];
      pack(o[0], j, words);
      ptx::store_matrices(Panel::advance(s_row, 0, j), words);
    }
    ptx::fence_async();
    __syncwarp();
    if (lane != 0) return;
#pragma unroll
    for (int column = 0; column < C.head_dim_v; column += 64) {
      ptx::store_box(block.p.out, s_out + column / 64 * Panel::kPanelBytes + warp_row() * kRowBytes, column,
                     item.sequence.row_q + first_of_warp(), item.work.head_idx,
                     Block::batch_of(p.cu_seqlens_q, item.work.batch_idx));
    }
    ptx::commit_boxes();
  }
  // The lane's rows of out from the accumulators, which are lost. With kKeepsQ the copy engine writes most rows.
  __device__ __forceinline__ void store_from_registers(const Item& item) {
    int64_t at[1][2];
    bool is_there[1][2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int32_t query = item.queries.first + row(r);
      at[0][r] = row_offset(p.out, item.work, item.sequence, query);
      is_there[0][r] = query < item.queries.end;
    }
    store_rows<C.score.element, kKeepsQ, kBlocksV>(p, o, at, is_there, 0, lane);
  }
  // Stores the item's out and leaves it. With kKeepsQ its queries' slot is taken until end_store().
  __device__ __forceinline__ void store(const float (&by)[1][2]) {
    scale_rows(o, by);
    const Item& item = current();
    const bool ends_tensor = item.sequence.row_q + item.queries.end == p.total_q;
    const bool may_send = ends_tensor || item.queries.end - first_of_warp() >= portable::kWarpRows;
    // No product reads these queries any more: which of A's rows a warp reads PTX does not say.
    if (kKeepsQ && !kHoldsQ) meet();
    if (kKeepsQ && p.out_vector_store && !p.out_is_f32 && may_send) {
      send(item);
    } else {
      store_from_registers(item);
    }
    if (kKeepsQ) q.advance();
    items.advance();
    release_slot(items.previous());  // else its address, found at the item's beginning, took a register until here
    part = next_part();
  }
  // had_item: whether there is something to end.
  __device__ __forceinline__ void end_store(bool had_item) const {
    if (!kKeepsQ || !had_item) return;
    if (lane == 0) ptx::wait_boxes();
    release_slot(q.previous().at(previous_part()));
  }

  __device__ __forceinline__ void wait_for_turn() const {
    if (kTakesTurns) ptx::named_wait(kTurn + warpgroup, kTurnThreads);
  }
  __device__ int next_warpgroup() const {
    return kWarpgroups == 2 ? 1 - warpgroup : warpgroup < kWarpgroups - 1 ? warpgroup + 1 : 0;
  }
  __device__ __forceinline__ void give_turn() const {
    if (kTakesTurns) ptx::named_arrive(kTurn + next_warpgroup(), kTurnThreads);
  }

  // Leaves out the stream's next tiles.
  __device__ __forceinline__ void leave_out(int32_t tiles) {
    if (!Block::kLeavesOut) return;
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

  // The item's output but for its last product: probabilities of the last tile are there. had_item: there was one
  // before it.
  __device__ __forceinline__ void run_item(float scale_log2, bool had_item) {
    Scores::begin_item();
    take_q();
    int32_t tile = enter(share().first);
    float s[1][kBlocks][4];
    k.wait_full();
    wait_for_turn();
    begin_scores(s[0]);
    Scores::find_diagonals(tile);
    give_turn();
    // While the scores are computed:
    end_store(had_item);
    clear_output();
    ptx::wait_products<0>(s[0]);
    for (bool has_output = false;; has_output = true) {
      release(k);
      if (!kKeepsQ && is_last(tile)) release_q();
      if (!kOverlaps) end_output(has_output);
      Scores::make_scores(s, tile);
      if (kOverlaps && !Scores::kInParts) end_output(has_output);
      float later[1][2] = {{1, 1}};  // what o is multiplied by when it is there
      bool rescales = false;
      const auto sum_of = [&](int, int r) { return sum(r); };
      Scores::softmax(s, tile, scale_log2, sum_of, [&](const float(&by)[1][2]) {
        if constexpr (Scores::kInParts) {
          rescales = true;
          later[0][0] = by[0][0];
          later[0][1] = by[0][1];
        } else {
          scale_rows(o, by);
        }
      });
      if constexpr (Scores::kInParts) {
        ptx::wait_products<0>(o[0]);  // softmax() has waited; the compiler is to read o behind this alone
        if (rescales) scale_rows(o, later);
        if (has_output) release(v);
      }
      if (!kHasMap) ptx::forget(tile);  // is_full() is asked again: one register less than its answer
      if (!kHasMap && is_full(tile + 1)) {
        ++tile;
      } else {
        if (!is_full(tile)) clear_unseen_values(tile);
        if (is_last(tile)) return;
        tile = enter(tile + 1);
      }
      k.wait_full();
      wait_for_turn();
      begin_scores(s[0]);
      Scores::find_diagonals(tile);
      v.wait_full();
      begin_output();
      give_turn();
      ptx::wait_products<Scores::kInParts ? 2 : 1>(s[0]);
    }
  }

  __device__ __forceinline__ void run() {
    if (kTakesTurns && warpgroup == 0) ptx::named_arrive(kTurn, kTurnThreads);
    if (!find_item()) return;
    const float scale_log2 = score_of(p, current()).scale_log2();
    bool had_item = false;
    while (find_item()) {
      float by[1][2];
      if (share().is_empty()) {
        end_store(had_item);
        q.at(part).wait_full();
        if (!kKeepsQ) release_q();
        clear_output();
        write_lse(by);
      } else {
        leave_out(share().before);
        run_item(scale_log2, had_item);
        v.wait_full();
        begin_output();
        if (Block::kSumsByProduct) end_output(true);  // sums come with it
        write_lse(by);
        if (!Block::kSumsByProduct) end_output(true);
      }
      const int32_t behind = share().behind;
      store(by);
      had_item = true;
      leave_out(behind);
    }
    end_store(had_item);
  }
};

template <ForwardSm90Config C>
__global__ void __launch_bounds__(BlockSm90<C>::kThreads, 1) forward_sm90(const __grid_constant__ ForwardSm90Params p) {
  using Block = BlockSm90<C>;
  const Block block(p, ptx::dynamic_shared());
  if (threadIdx.x == 0) {
    ptx::prefetch(p.q);
    ptx::prefetch(p.k);
    ptx::prefetch(p.v);
    ptx::prefetch(p.out);
    block.init_barriers();
  }
  if constexpr (Block::kSumsByProduct) block.write_ones();
  if constexpr (C.cluster > 1) {
    ptx::sync_cluster();
  } else {
    __syncthreads();
  }
  if (threadIdx.x < 128) {
    ptx::give_registers<Block::kLoadRegisters>();
    const bool loads = Block::kLoadsByWarp || threadIdx.x % 32 == 0;
    const int warp = static_cast<int>(threadIdx.x / 32);
    // In this order the assembler lets threads leave that are done. In another that was tried they waited for those of
    // their warp that load, at 2 to 4 % of the time (docs/lab/forward_sm90.md).
    if (warp < 2) {
      block.walk_items(warp == 1);
    } else if (loads) {
      if (warp == 2) {
        block.load_q_and_k();
      } else {
        block.load_v();
      }
    }
  } else {
    ptx::take_registers<Block::kMultiplyRegisters>();
    WarpgroupSm90<C> warpgroup(block);
    warpgroup.run();
  }
  if constexpr (C.cluster > 1) ptx::sync_cluster();  // the others still arrive at this block's barriers
}

}  // namespace tessella::device
