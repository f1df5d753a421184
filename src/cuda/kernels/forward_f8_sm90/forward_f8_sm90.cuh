// FlashAttention-3's forward in 8 bits (arXiv 2407.08608, section 3.3): q, k and v of e4m3 with factors on their rows,
// on forward_sm90's blocks, rings and walks.
//
// The matrix unit keeps 14 bits of what it adds up in 8-bit products (DeepSeek-V3, arXiv 2412.19437, section 3.3.2), so
// the products of every tile begin from zero and are added to out in fp32: one key among 128k keeps its weight. It
// costs no instruction that the rescaling of out would not.
//
//   each warpgroup    64 rows of the query tile:
//     for every key tile i:
//       s is there: factors, masks, frames
//       exponentials of the first half of the keys    while t = p v of the tile before runs
//       t is there: out = out * factor + t            one instruction an element
//       the other exponentials; p in 8 bits
//       begin s = q k(i + 1)^T
//       begin t = p v(i)
//     out = out / sum
//
// t holds as many of v's columns as registers are left for; the others follow in the same way. v is transposed
// (kernels/forward_sm90/transposed_v.cuh). The softmax: kernels/forward_f8_sm90/scores_f8_sm90.cuh.
#pragma once

#include "cuda/device/ptx/wgmma.cuh"
#include "cuda/device/score/output.cuh"
#include "cuda/device/tile/operand.cuh"
#include "cuda/device/tile/tile.cuh"
#include "cuda/kernels/forward_f8_sm90/scores_f8_sm90.cuh"
#include "cuda/kernels/forward_sm90/warpgroup_sm90.cuh"

namespace tessella::device {

template <ForwardSm90Config C>
struct WarpgroupF8Sm90 : WarpgroupBaseSm90<C, false> {
  static_assert(C.score.elements == portable::Elements{Element::e4m3, Element::e4m3, Element::e4m3});
  using Base = WarpgroupBaseSm90<C, false>;
  using Block = BlockSm90<C>;
  using QueryTile = typename Block::QueryTile;
  using Scores = ScoresF8Sm90<C>;
  using Base::block, Base::p, Base::at, Base::q, Base::k, Base::v;
  using Base::meet, Base::release, Base::release_q, Base::negate_q, Base::skip;
  static constexpr int kRowBytes = Block::kRowBytes;
  static constexpr int kBlocks = Scores::kBlocks, kBlocksV = C.head_dim_v / 8, kStepsQ = C.head_dim_qk / 32;
  static constexpr int kColumns = portable::columns_at_once(C);  // of v, in t
  static constexpr int kParts = C.head_dim_v / kColumns;
  // Whether out takes t behind all exponentials of the next tile: so wide heads with factors of keys spill the least.
  static constexpr bool kEndsLate = C.head_dim_v > 128 && Scores::kHasKeyScales;

  Scores scores;
  float o[1][kBlocksV][4];
  float t[kColumns / 8][4];
  float factor[2];  // on out before it takes t
  float scale_v;    // out counts in these units

  __device__ __forceinline__ explicit WarpgroupF8Sm90(const Block& of) : Base(of), scores(of.p.forward) {}

  // Where the operands of s and t are, found before they are there: finding takes time.
  __device__ __forceinline__ Operand<> operand_q() const { return Operand<>(block.s_q_of(q, at.warpgroup)); }
  __device__ __forceinline__ Operand<> operand_k() const { return Operand<>(block.s_k(k)); }
  __device__ __forceinline__ Operand<C.tile_kv> operand_v() const { return Operand<C.tile_kv>(block.s_v(v)); }

  // s = q k^T
  __device__ __forceinline__ static void begin_scores(float (&s)[kBlocks][4], const Operand<>& of_q,
                                                      const Operand<>& of_k) {
    using Mma = ptx::WarpgroupMma<Element::e4m3, C.tile_kv>;
    const auto panel = [](int step, int rows) { return step / 4 * kRowBytes * rows + step % 4 * 32; };
    ptx::fence_registers();
#pragma unroll
    for (int step = 0; step < kStepsQ; ++step) {
      Mma::with_shared(s, of_q.at(panel(step, Block::kRows)), of_k.at(panel(step, C.tile_kv)), step > 0);
    }
    ptx::commit_products();
  }
  // t = p v, of a part of v's columns.
  __device__ __forceinline__ void begin_output(int part, const Operand<C.tile_kv>& of_v) {
    using Mma = ptx::WarpgroupMma<Element::e4m3, kColumns>;
    ptx::fence_registers();
#pragma unroll
    for (int step = 0; step < kBlocks / 4; ++step) {
      Mma::with_registers(t, scores.probabilities[step], of_v.at(part * kColumns * C.tile_kv + step * 32), step > 0);
    }
    ptx::commit_products();
  }
  // out takes t.
  __device__ __forceinline__ void end_output(int part) {
    ptx::wait_products<0>(t);
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& of = o[0][part * (kColumns / 8) + j][i];
        of = __fmaf_rn(of, factor[i / 2], t[j][i]);
      }
    }
  }
  // The rest of the tile's output, whose first part has begun.
  __device__ __forceinline__ void end_outputs() {
    const Operand<C.tile_kv> of_v = operand_v();
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if (part > 0) begin_output(part, of_v);
      end_output(part);
    }
    release(v);
  }

  // Keys that no query sees may hold anything: they become zeros (WarpgroupSm90::clear_unseen_values).
  __device__ __forceinline__ void clear_unseen_values(int32_t tile) const {
    if (scores.walk.all_are_seen(at, v, tile)) return;
    v.wait_full();
    const uint32_t s_v = block.s_v(v);
    using Values = device::Tile<C.head_dim_v, C.tile_kv, 1>;
    for (int i = static_cast<int>(threadIdx.x % 128); i < C.head_dim_v * Values::kChunks; i += 128) {
      const int column = i / Values::kChunks, chunk = i % Values::kChunks;
      uint32_t seen[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        seen[w] = 0;
#pragma unroll
        for (int b = 0; b < 4; ++b) {
          const bool is_seen = scores.walk.is_seen(at, v, tile, chunk * 16 + portable::key_at(w * 4 + b));
          seen[w] |= is_seen ? 0xFFu << b * 8 : 0;
        }
      }
      const uint32_t to = s_v + Values::offset(column, chunk);
      const uint4 words = ptx::load_chunk(to);
      ptx::store_chunk(to, {words.x & seen[0], words.y & seen[1], words.z & seen[2], words.w & seen[3]});
    }
    ptx::fence_async();
    meet();
  }

  // The unit of the tile's t. Factors of keys enter the probabilities first.
  __device__ __forceinline__ float take_scales_of_v(typename Scores::Tile& s) const {
    v.wait_full();
    const uint32_t s_scales = block.s_scales_of_v(v);
    if constexpr (Scores::kHasKeyScales) {
      const float largest = Scores::largest_of_columns(s_scales, at.lane);
      Scores::multiply_columns(s, s_scales, at.lane, largest > 0 ? ptx::reciprocal(largest) : 0.0f);
      return largest > 0 ? largest : scale_v;
    }
    const float unit = __uint_as_float(ptx::load_word(s_scales));
    return unit != 0 ? unit : scale_v;  // the tile's v is zero then
  }

  // All of a query tile's output but its last product: the last tile's probabilities are there.
  __device__ __forceinline__ void multiply() {
    scores.begin(at);
    q.wait_full();
    if (p.scores.scale < 0) negate_q(block.s_q_of(q, at.warpgroup));
    int32_t tile = scores.walk.enter(at, k, at.computed().first);
    typename Scores::Tile s;
    k.wait_full();
    scores.load_scale(block.s_scales_of_k(k));
    const Operand<> of_q = operand_q();
    const Operand<> of_k = operand_k();
    begin_scores(s[0], of_q, of_k);
    clear_output();
    ptx::wait_products<0>(s[0]);
    bool is_last = scores.walk.is_last(at, tile);
    take_tile<false, false>(s, tile, is_last);
#pragma unroll 1
    while (!is_last) {
      // Inside a band every row sees the tile whole, and the next one.
      if (KeyWalk<C>::kKnowsInside && scores.walk.is_full(tile + 1) && scores.walk.is_full(tile + 2)) {
        ++tile;
        begin_next(s);
        take_tile<true, true>(s, tile, false);
      } else {
        tile = scores.walk.next(at, k, tile);
        begin_next(s);
        is_last = scores.walk.is_last(at, tile);
        take_tile<false, true>(s, tile, is_last);
      }
    }
  }
  // Begins the next tile's scores and the output of this one, and waits for the scores.
  __device__ __forceinline__ void begin_next(typename Scores::Tile& s) {
    const Operand<> of_q = operand_q();
    const Operand<> of_k = operand_k();
    const Operand<C.tile_kv> of_v = operand_v();
    k.wait_full();
    scores.load_scale(block.s_scales_of_k(k));
    begin_scores(s[0], of_q, of_k);
    begin_output(0, of_v);
    ptx::wait_products<1>(s[0]);
  }
  // Makes probabilities of a tile's scores. HasOutput: the output of the tile before has begun.
  template <bool IsFull, bool HasOutput>
  __device__ __forceinline__ void take_tile(typename Scores::Tile& s, int32_t tile, bool is_last) {
    if (!IsFull && is_last) release_q();
    scores.template finish_scores<IsFull>(at, s, tile, block.s_scales_of_k(k));
    release(k);
    float rescale[2];
    scores.take_frames(at, s, tile, rescale);
    scores.template exponentiate<0, kBlocks / 2>(at, s, tile);
    if constexpr (HasOutput && !kEndsLate) end_outputs();
    scores.template exponentiate<kBlocks / 2, kBlocks>(at, s, tile);
    if constexpr (HasOutput && kEndsLate) end_outputs();
    const float unit = take_scales_of_v(s);
    scores.round(s);
    take_unit(unit, rescale);
    if (!IsFull && !scores.walk.is_full(tile)) clear_unseen_values(tile);
  }
  // The factor on out, from the units of the tile before to those of this one.
  __device__ __forceinline__ void take_unit(float unit, const float (&rescale)[2]) {
    const float ratio = unit == scale_v ? 1.0f : scale_v * ptx::reciprocal(unit);
    scale_v = unit;
#pragma unroll
    for (int r = 0; r < 2; ++r) factor[r] = rescale[r] * ratio;
  }
  __device__ __forceinline__ void clear_output() {
    scale_v = 1;
    Base::clear_in_place(o);
  }

  // Writes the query tile's lse. by: what its output is to be multiplied by.
  __device__ __forceinline__ void write_lse(float (&by)[1][2]) {
    Base::finish_rows(by, [&](int r, bool has_sink, float sink) {
      return finish(scores.frame[r] - Scores::kTop, row_sum(scores.sum[r]), kLn2, has_sink, sink);
    });
#pragma unroll
    for (int r = 0; r < 2; ++r) by[0][r] *= scale_v;
  }
  // Stores the query tile's out and leaves it.
  __device__ __forceinline__ void store(const float (&by)[1][2]) {
    scale_rows(o, by);
    const QueryTile& of = at.current();
    const auto rows = Base::out_rows(of);
    if (p.output.out_element == Element::f16) {
      store_rows<Element::f16, true, kBlocksV>(p.output, p.inputs.head_dim_v, o, rows.at, rows.is_there, 0, at.lane);
    } else {
      store_rows<Element::bf16, true, kBlocksV>(p.output, p.inputs.head_dim_v, o, rows.at, rows.is_there, 0, at.lane);
    }
    release(at.query_tiles);
    at.row_group = Block::next_row_group(at.row_group);
  }

  __device__ __forceinline__ void run() {
    while (at.find_query_tile()) {
      const WarpgroupTiles& computed = at.computed();
      float by[1][2];
      if (QueryTile::kSkips && computed.first >= computed.end) {
        scores.begin(at);
        q.wait_full();
        release_q();
        clear_output();
        write_lse(by);
      } else {
        skip(computed.skipped_before);
        multiply();
        begin_output(0, operand_v());
        write_lse(by);
        end_outputs();
      }
      const int32_t skipped_after = at.computed().skipped_after;
      store(by);
      skip(skipped_after);
    }
  }
};

template <ForwardSm90Config C>
__global__ void __launch_bounds__(BlockSm90<C>::kThreads, 1)
    forward_f8_sm90(const __grid_constant__ ForwardSm90Params p) {
  run_block<C, WarpgroupF8Sm90<C>>(p);
}

}  // namespace tessella::device
