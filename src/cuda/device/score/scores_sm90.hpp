// What a warpgroup of forward_sm90 does to the scores of a tile: features, masks, maxima, probabilities.
#pragma once

#include "cuda/device/schedule/block_sm90.hpp"
#include "cuda/device/score/band_mask.hpp"
#include "cuda/device/score/dropout.hpp"
#include "cuda/device/score/score.hpp"
#include "cuda/device/score/softmax_rows.hpp"
#include "cuda/device/tile/multiply.hpp"

namespace tessella::device {

template <ForwardSm90Config C>
struct ScoresSm90 {
  using Block = BlockSm90<C>;
  using Item = typename Block::Item;
  using Items = typename Block::Items;
  using Score = device::Score<C.score, C.scales_q>;
  static constexpr bool kHasMap = Block::kHasMap;
  static constexpr int kBlocks = C.tile_kv / 8;
  // o += p v reads its probabilities from registers: with kInParts the first kFirstSteps of its products, of 16 keys
  // each, are waited for alone, and the next tile's probabilities take the place of theirs while the rest is under way.
  // Found by measuring (docs/lab/forward_sm90.md); other tiles and head dims were not tried.
  static constexpr int kSteps = kBlocks / 2, kFirstSteps = kSteps * 3 / 8;
  static constexpr bool kInParts = portable::holds_queries(C) && C.tile_kv == 128 && !C.score.softcap;

  // Tiles whose exponents are taken against what was there before have code of their own, apart from those that are
  // looked at: fewer instructions a step, more in the kernel. Found by measuring too. (In parts probabilities may be
  // made in one place alone, lest the assembler makes all products wait: note C7513.)
  static constexpr bool kUsualApart =
      Score::kHasSeries || (Block::kWarpgroups == 3 && !C.score.bias && !C.score.dropout && !C.score.batch_invariant);
  static_assert(!(kUsualApart && kInParts));

  const Block& block;
  const ForwardParams& p;
  int warpgroup, lane;
  int part;  // which 64 of the item's queries are the warpgroup's
  Items items;
  uint32_t probabilities[kSteps][4];
  WatchedRows rows;
  int32_t full_end;           // from the tile at hand on, tiles before it are seen whole by the warpgroup
  typename Block::Note note;  // of the tile at hand, with a tile map
  uint32_t visible[2];  // with a tile map: columns of the lane's rows, as columns_below() has them, where it is not
  // ALiBi alone comes with the exponents where the keys of the tile at hand lie on one side of the warp's queries:
  // scores are products there.
  static constexpr bool kHasSides = C.score.alibi && Score::kAreProducts;
  int side;       // 1: keys before the queries, -1: behind them, 0: neither, or a slope too steep for it
  int32_t place;  // of the warp's first query
  float slope;    // what ALiBi takes off an exponent of 2 for each place between query and key
  // With a score modification, from begin_item() on: whether all of the warp's queries are the sequence's, the lane's
  // first one, and the head.
  bool has_all_rows;
  int32_t lane_query, head_idx;
  // A modification that asks for q - k finds it while a tile's scores are computed, where a warp has nothing else to
  // do, if there are registers for all diagonals. [j][c]: (1 - j) * 8 - c more than the corner's.
  static constexpr bool kFindsDiagonals = C.by_distance && C.tile_kv == 128 && !C.score.batch_invariant;
  static_assert(!kFindsDiagonals || Block::kWarpgroups == 2, "three warpgroups have no registers for them");
  float diagonals[kFindsDiagonals ? kBlocks + 1 : 1][2];

  __device__ __forceinline__ explicit ScoresSm90(const Block& of)
      : block(of),
        p(of.p.forward),
        warpgroup(static_cast<int>(threadIdx.x / 128) - 1),
        lane(static_cast<int>(threadIdx.x % 32)),
        part(warpgroup),
        items(of.item_barriers()) {}

  __device__ const Item& current() const { return block.item(items); }
  __device__ const typename Block::Share& share() const { return current().shares[part]; }
  __device__ static Score score_of(const ForwardParams& p, const Item& item) {
    return Score(p, item.sequence, item.work.batch_idx, item.work.head_idx);
  }
  // Of the warpgroup's queries, the warp's first.
  __device__ static int warp_row() { return static_cast<int>(threadIdx.x / 32 % 4) * portable::kWarpRows; }
  // The warp's first query.
  __device__ int32_t first_of_warp() const { return current().queries.first + part * Block::kRows + warp_row(); }
  // Of the tile of queries.
  __device__ int row(int r) const { return part * Block::kRows + warp_row() + r * 8 + lane / 4; }
  __device__ bool is_full(int32_t tile) const { return tile < full_end; }
  // The lane's first query and key of the tile; with a score modification from begin_item() on.
  __device__ typename Score::Corner corner_of(const Score& score, int32_t tile) const {
    const int32_t query = C.score.score_mod ? lane_query : current().queries.first + row(0);
    return score.corner(query, current().first_key(tile) + lane % 4 * 2);
  }

  // Of the item; with a score modification from begin_item() on.
  __device__ Score score_of_item() const {
    const Item& item = current();
    return Score(p, item.sequence, item.work.batch_idx, C.score.score_mod ? head_idx : item.work.head_idx);
  }

  __device__ __forceinline__ void find_diagonals(int32_t tile) {
    if constexpr (kFindsDiagonals) {
      const auto corner = corner_of(score_of_item(), tile);
#pragma unroll
      for (int j = 0; j <= kBlocks; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          diagonals[j][c] = Score::q_minus_k(corner, (1 - j) * 8 - c);
          ptx::compute_here(diagonals[j][c]);
        }
      }
    }
  }
  // Of the score i of block j, in a tile within the lengths.
  __device__ __forceinline__ float q_minus_k(const typename Score::Corner& corner, int j, int i) const {
    if constexpr (kFindsDiagonals) return diagonals[j + 1 - i / 2][i % 2];
    return Score::q_minus_k(corner, (i / 2 - j) * 8 - i % 2);
  }

  // Softcap, bias, ALiBi and the caller's score modification. AreWithin: as in Score::value(); false serves as well.
  template <bool AreWithin>
  __device__ __forceinline__ void modify(float (&s)[kBlocks][4], int32_t tile) const {
    const Score score = score_of_item();
    const auto corner = corner_of(score, tile);
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[j][i] = score.template value<AreWithin>(s[j][i], corner, i / 2 * 8, j * 8 + i % 2, q_minus_k(corner, j, i));
      }
      // What 16 keys load is used before more is loaded: a whole tile's would fill all registers.
      if ((C.score.bias || C.score.score_mod) && j % 2 == 1) ptx::keep_loads_in_place();
    }
  }

  // Zeroes what dropout takes from the probabilities of blocks j and j + 1, 16 keys.
  __device__ __forceinline__ void drop(float (&probability)[2][4], int32_t tile, int j) const {
    device::drop(probability, 0, dropout_of(p), dropout_head(p, current().work),
                 (current().queries.first + row(0)) / 16, (current().first_key(tile) + j * 8) / 16, lane);
  }

  // Of a row of the tile of queries.
  __device__ KeyRange bounds(int of_row) const {
    const uint2 words = ptx::load_words(block.s_bounds(items, of_row));
    return {static_cast<int32_t>(words.x), static_cast<int32_t>(words.y)};
  }

  // What the lane's rows see of the tile, as columns_below() has it, by the band alone. By a whole warp, most of whose
  // tiles with masks begin behind the first keys of all rows.
  __device__ __forceinline__ void find_columns(int32_t tile, uint32_t (&columns)[2]) const {
    const int32_t first_key = current().first_key(tile);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const KeyRange keys = bounds(row(r));
      columns[r] = columns_below<C.tile_kv>(keys.end - first_key, lane);
      if (__any_sync(kAllLanes, keys.begin > first_key)) {
        columns[r] &= columns_from<C.tile_kv>(keys.begin - first_key, p.keep_first - first_key, lane);
      }
    }
  }

  // With a tile map, of a tile that the warpgroup does not see whole, before the scores take the registers.
  __device__ __forceinline__ void find_visible(int32_t tile, bool is_partial) {
    find_columns(tile, visible);
    if (!is_partial || !__any_sync(kAllLanes, (visible[0] | visible[1]) != 0)) return;
    const Item& item = current();
    hide_by_elements<C.score, C.tile_kv>(p, item.sequence, item.work.batch_idx, item.work.head_idx, first_of_warp(),
                                         item.first_key(tile), visible);
  }

  __device__ __forceinline__ void begin_item() {
    if constexpr (Score::kHasSeries) {
      rows.is_settled = __all_sync(kAllLanes, score_of(p, current()).may_use_series(current().least_keys));
      if (rows.is_settled) rows.max[0] = rows.max[1] = 0;
    }
    if constexpr (kHasSides) {
      const Item& item = current();
      slope = score_of(p, item).slope_log2();
      place = item.sequence.band.position(first_of_warp());
    }
    if constexpr (C.score.score_mod) {
      const Item& item = current();
      has_all_rows = __all_sync(kAllLanes, first_of_warp() + portable::kWarpRows <= item.sequence.len_q);
      lane_query = first_of_warp() + lane / 4;
      head_idx = item.work.head_idx;
    }
  }

  // Features and masks, before softmax. A softcap alone has them in look().
  __device__ __forceinline__ void make_scores(float (&s)[1][kBlocks][4], int32_t tile) {
    if constexpr (Score::kHasSeries) return;
    if constexpr (kHasSides) {
      find_side(tile);
    } else if constexpr (!Score::kIsPlain) {
      // A tile seen whole has no key behind the sequence's. It goes its own way up to the end, or the assembler moves
      // 11 of its scores to where the other way has them.
      if (C.score.score_mod && !C.score.batch_invariant && has_all_rows && is_full(tile)) {
        modify<true>(s[0], tile);
        ptx::keep_in_place(s[0]);
        return;
      }
      modify<false>(s[0], tile);
    }
    hide(s, tile);
    ptx::keep_in_place(s[0]);  // those of tiles with masks and without in the same registers
  }
  __device__ __forceinline__ void find_side(int32_t tile) {
    const int32_t key = current().first_key(tile);
    side = place >= key + C.tile_kv - 1 ? 1 : place + portable::kWarpRows - 1 <= key ? -1 : 0;
    // A row's offset is rounded at the size of the slope times a tile's keys: to 2^-16 at the most.
    constexpr float kSteepest = 2;
    if (!(fabsf(slope) < kSteepest)) side = 0;
  }
  // The scores of a tile become unnormalised probabilities. sum_of(0, r): of row r's in the tiles before.
  // rescale(factor): o is to be multiplied; with kInParts it may not be there yet, but is on return.
  template <class Sum, class Rescale>
  __device__ __forceinline__ void softmax(float (&s)[1][kBlocks][4], int32_t tile, float scale_log2, const Sum& sum_of,
                                          const Rescale& rescale) {
    float sum[2], rounded[2];
    if constexpr (kUsualApart) {
      constexpr bool kBySeries = Score::kHasSeries;
      // By votes, so that the compiler knows that all lanes go the same way.
      const bool is_usual =
          __all_sync(kAllLanes, rows.is_settled && (!kBySeries || is_full(tile)) && (!kHasSides || side != 0));
      if (!is_usual || !__all_sync(kAllLanes, exponentiate(s[0], tile, scale_log2, kBySeries, false, sum, rounded))) {
        look(s, tile, scale_log2, sum_of, rescale);
        // Apart where no register is left for coefficients that are chosen.
        constexpr bool kApart = kHasMap || (C.scales_q && Block::kWarpgroups == 3);
        if (kBySeries && kApart && rows.is_settled) {
          exponentiate(s[0], tile, scale_log2, true, false, sum, rounded);
        } else {
          exponentiate(s[0], tile, scale_log2, kBySeries && !kApart && rows.is_settled, false, sum, rounded);
        }
      }
    } else {
      bool looks = !rows.is_settled || (kHasSides && side == 0);
      bool waits = kInParts;  // the first time alone, which every warp does: a warpgroup's warps share their waits
#pragma unroll 1
      for (;;) {
        if (looks) look(s, tile, scale_log2, sum_of, rescale);
        const bool serves = exponentiate(s[0], tile, scale_log2, false, waits, sum, rounded);
        if (looks || __all_sync(kAllLanes, serves)) break;
        looks = true;
        waits = false;
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (!Block::kSumsByProduct) rows.sum[r] += sum[r];
      if (Score::kRoundsSums) rows.rounded[r] += rounded[r];
    }
  }

  // A closer look at a tile: what its exponents are to be taken against.
  template <class Sum, class Rescale>
  __device__ __forceinline__ void look(float (&s)[1][kBlocks][4], int32_t tile, float scale_log2, const Sum& sum_of,
                                       const Rescale& rescale) {
    if constexpr (kHasSides) {
      modify<false>(s[0], tile);
      side = 0;
    }
    if constexpr (!Score::kHasSeries) {
      if constexpr (C.score.batch_invariant) return raise_max_of_each(s, rows, scale_log2, rescale);
      if (begin_max(s, rows, scale_log2)) return;
      raise_max(s, rows, scale_log2, rescale);
    } else {
      // A softcap alone. Scores that its series serves stay products, and need no maximum.
      const Score score = score_of(p, current());
      if (rows.is_settled) {
        float square = 0;
#pragma unroll
        for (int j = 0; j < kBlocks; j += 2) square = Score::square_max_16(s[0], j, square);
        rows.is_settled = __all_sync(kAllLanes, score.series_serves(square));
        if (!rows.is_settled) {
          RowState state[1] = {rows};
          take_max_of_sums(state, sum_of, [&](int, const float(&by)[2]) {
            const float factor[1][2] = {{by[0], by[1]}};
            rescale(factor);
          });
          static_cast<RowState&>(rows) = state[0];
        }
      }
      if (!rows.is_settled) cap(score, s[0]);
      hide(s, tile);
      if (rows.is_settled) return;
      raise_max(s, rows, scale_log2, rescale);
      rows.is_settled = false;
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          constexpr float kLeast = -0x1p60f;  // finite, as exponentiate() wants; NaN stays
          s[0][j][i] -= rows.offset[i / 2];
          if (s[0][j][i] < kLeast) s[0][j][i] = kLeast;
        }
      }
    }
  }
  // Masks the tile's scores.
  __device__ __forceinline__ void hide(float (&s)[1][kBlocks][4], int32_t tile) const {
    if (is_full(tile)) return;
    uint32_t columns[2];
    if constexpr (kHasMap) {
      columns[0] = visible[0];
      columns[1] = visible[1];
    } else {
      find_columns(tile, columns);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) hide_columns(s[0], r, columns[r]);
  }

  // Blocks j and j + 1 of accumulators in 16 bits: a left operand, and as load_matrices() has them.
  template <int Blocks>
  __device__ __forceinline__ static void pack(const float (&accumulators)[Blocks][4], int j, uint32_t (&words)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* pair = &accumulators[j + i / 2][i % 2 * 2];
      words[i] = Multiply<C.score.element>::pack(pair[0], pair[1]);
    }
  }

  // Unnormalised probabilities of a tile's scores, which stay, and the lane's sums of them, also as rounded. False if
  // they do not serve: sums are too large, or a product is beyond the softcap's series. waits: for each part of
  // o += p v before what it reads is written; in all warps of a warpgroup alike.
  __device__ __forceinline__ bool exponentiate(const float (&s)[kBlocks][4], int32_t tile, float scale_log2,
                                               bool by_series, bool waits, float (&sum)[2], float (&rounded)[2]) {
    const Score score = score_of(p, current());
    float offset[2] = {rows.offset[0], rows.offset[1]};
    float step = 0;  // from a key to the next
    if constexpr (kHasSides) {
      step = side == 0 ? 0.0f : side > 0 ? slope : -slope;
      const auto places = static_cast<float>(place + lane / 4 - current().first_key(tile) - lane % 4 * 2);
#pragma unroll
      for (int r = 0; r < 2; ++r) offset[r] = __fmaf_rn(step, places + static_cast<float>(r * 8), offset[r]);
    }
    const auto exponent = [=, of_capped = score.exponent(by_series)](float of, int r, int column) {
      if constexpr (Score::kHasSeries) return of_capped(of);
      const float against = kHasSides ? __fmaf_rn(step, static_cast<float>(-column), offset[r]) : offset[r];
      return __fmaf_rn(of, scale_log2, -against);
    };
    float square = 0;
    rounded[0] = rounded[1] = 0;
#pragma unroll
    for (int j = 0; j < kBlocks; j += 2) {
      if (j == 0 && waits) ptx::wait_products<1>();
      if (j == kFirstSteps * 2 && waits) ptx::wait_products<0>();
      float probability[2][4];
      exponentiate_16(s, j, exponent, probability, sum);
      if constexpr (Score::kRoundsSums) {
        round_block<C.score.element>(probability[0], rounded);
        round_block<C.score.element>(probability[1], rounded);
      }
      if constexpr (Score::kHasSeries) square = Score::square_max_16(s, j, square);
      if constexpr (C.score.dropout) drop(probability, tile, j);
      pack(probability, 0, probabilities[j / 2]);
    }
    if constexpr (!Score::kHasSeries) return !(fmaxf(sum[0], sum[1]) > kLargestSum);
    // Probabilities are not to be made behind the caller's vote, with a square for each kept until then.
    if constexpr (Block::kSumsByProduct) {
      ptx::keep_in_place(probabilities);
    } else {
      ptx::keep_in_place(sum);
    }
    return score.series_serves(square);
  }
};

}  // namespace tessella::device
