// What a warpgroup of forward_sm90 does to the scores of a tile: features, masks, maxima, probabilities.
#pragma once

#include "cuda/device/band_mask.hpp"
#include "cuda/device/block_sm90.hpp"
#include "cuda/device/multiply.hpp"
#include "cuda/device/score.hpp"
#include "cuda/device/softmax_rows.hpp"
#include "portable/dropout.hpp"

namespace tessella::device {

template <ForwardConfig C>
struct ScoresSm90 {
  using Block = BlockSm90<C>;
  using Item = typename Block::Item;
  using Items = typename Block::Items;
  static constexpr bool kHasMap = Block::kHasMap;
  static constexpr int kBlocks = C.tile_kv / 8;

  const Block& block;
  const ForwardParams& p;
  int warpgroup, lane;
  int part;  // which 64 of the item's queries are the warpgroup's
  Items items;
  uint32_t probabilities[kBlocks / 2][4];
  WatchedRows rows;
  int32_t full_end;     // from the tile at hand on, tiles before it are seen whole by the warpgroup
  uint32_t visible[2];  // with a tile map: columns of the lane's rows, as columns_below() has them, where it is not
  bool is_small;        // the softcap's series has served all the warp's tiles of the item

  __device__ __forceinline__ explicit ScoresSm90(const Block& of)
      : block(of),
        p(of.p.forward),
        warpgroup(static_cast<int>(threadIdx.x / 128) - 1),
        lane(static_cast<int>(threadIdx.x % 32)),
        part(warpgroup),
        items(of.item_barriers()) {}

  __device__ const Item& current() const { return block.item(items.slot()); }
  __device__ const typename Block::Share& share() const { return current().shares[part]; }
  __device__ static Score<C> score_of(const ForwardParams& p, const Item& item) {
    return Score<C>(p, item.sequence, item.work.batch_idx, item.work.head_idx);
  }
  // Of the warpgroup's queries, the warp's first.
  __device__ static int warp_row() { return static_cast<int>(threadIdx.x / 32 % 4) * portable::kWarpRows; }
  // Of the tile of queries.
  __device__ int row(int r) const { return part * Block::kRows + warp_row() + r * 8 + lane / 4; }
  __device__ bool is_full(int32_t tile) const { return tile < full_end; }
  // The lane's first query and key of the tile.
  __device__ typename Score<C>::Corner corner_of(const Score<C>& score, int32_t tile) const {
    return score.corner(current().first_q() + row(0), tile * C.tile_kv + lane % 4 * 2);
  }

  // Softcap, bias, ALiBi and the caller's text.
  __device__ __forceinline__ void modify(float (&s)[kBlocks][4], int32_t tile) const {
    const Score<C> score = score_of(p, current());
    const auto corner = corner_of(score, tile);
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[j][i] = score.value(s[j][i], corner, i / 2 * 8, j * 8 + i % 2);
      // What 16 keys load is used before more is loaded: a whole tile's would fill all registers.
      if ((C.bias || C.score) && j % 2 == 1) ptx::keep_loads_in_place();
    }
  }

  // Zeroes what dropout takes from blocks j and j + 1, 16 keys.
  __device__ __forceinline__ void drop(float (&s)[kBlocks][4], int32_t tile, int j) const {
    const portable::Dropout dropout = {p.seed_data != nullptr ? static_cast<uint64_t>(*p.seed_data) : p.seed,
                                       p.offset_data != nullptr ? static_cast<uint64_t>(*p.offset_data) : p.offset,
                                       p.dropout_threshold};
    const WorkTile& work = current().work;
    const portable::Random4 random =
        dropout.bits(static_cast<uint64_t>(work.batch_idx) * p.heads_q + work.head_idx,
                     (current().first_q() + row(0)) / 16, (tile * C.tile_kv + j * 8) / 16, lane / 4, lane % 4);
#pragma unroll
    for (int word = 0; word < 4; ++word) {  // row word % 2, block word / 2
      float* pair = &s[j + word / 2][word % 2 * 2];
      if ((random.word[word] & 0xFFFF) < dropout.threshold) pair[0] = 0;
      if (random.word[word] >> 16 < dropout.threshold) pair[1] = 0;
    }
  }

  // Of a row of the tile of queries.
  __device__ KeyRange bounds(int of_row) const {
    const uint2 words = ptx::load_words(block.s_bounds(items.slot(), of_row));
    return {static_cast<int32_t>(words.x), static_cast<int32_t>(words.y)};
  }

  // What the lane's rows see of a tile that the warpgroup does not see whole, before the scores take the registers.
  __device__ __forceinline__ void find_visible(int32_t tile, bool is_partial) {
    const Item& item = current();
    const int32_t first_key = tile * C.tile_kv, first_row = part * Block::kRows + warp_row();
#pragma unroll
    for (int r = 0; r < 2; ++r) visible[r] = columns_in<C.tile_kv>(bounds(row(r)), first_key, p.keep_first, lane);
    if (!is_partial || !__any_sync(kAllLanes, (visible[0] | visible[1]) != 0)) return;
    visible_columns<C>(
        p, item.sequence, item.work.batch_idx, item.work.head_idx, item.first_q() + first_row, first_key,
        [&](int i) { return bounds(first_row + i); }, visible);
  }

  // Masks the tile's scores and takes them into the maxima. rescale(factor): o is to be multiplied.
  template <bool Begins, class Rescale>
  __device__ __forceinline__ void take_scores(float (&s)[1][kBlocks][4], int32_t tile, float scale_log2,
                                              float (&offset)[2], const Rescale& rescale) {
    if constexpr (Score<C>::kHasSeries) {
      take_capped<Begins>(s, tile, scale_log2, offset, rescale);
    } else {
      if constexpr (!Score<C>::kIsPlain) modify(s[0], tile);
      hide(s, tile);
      const float largest[2] = {lane_max(s[0], 0), lane_max(s[0], 1)};
      take_max<Begins>(
          s, largest, rows, scale_log2, offset, [](float of_row) { return of_row; }, rescale);
    }
  }
  // The same with a softcap alone. Scores that its series serves stay products; series and tanh grow with them.
  template <bool Begins, class Rescale>
  __device__ __forceinline__ void take_capped(float (&s)[1][kBlocks][4], int32_t tile, float scale_log2,
                                              float (&offset)[2], const Rescale& rescale) {
    const Score<C> score = score_of(p, current());
    float largest[2];
    const auto find_largest = [&] {
      hide(s, tile);
#pragma unroll
      for (int r = 0; r < 2; ++r) largest[r] = lane_max(s[0], r);
    };
    if (is_small) {
      const float least = score.series(lane_least(s[0]));
      find_largest();
      is_small = __all_sync(kAllLanes, score.series_serves(least, score.series(fmaxf(largest[0], largest[1]))));
    }
    if (!is_small) {
      modify(s[0], tile);
      find_largest();
    }
    const auto of_max = [&](float of_row) { return is_small && of_row > -kInfinity ? score.series(of_row) : of_row; };
    take_max<Begins>(s, largest, rows, scale_log2, offset, of_max, rescale);
    if (is_small) return;
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        constexpr float kLeast = -0x1p60f;  // finite, as exponentiate() wants; NaN stays
        if (s[0][j][i] < kLeast) s[0][j][i] = kLeast;
      }
    }
  }
  // Masks the tile's scores.
  __device__ __forceinline__ void hide(float (&s)[1][kBlocks][4], int32_t tile) const {
    if (is_full(tile)) return;
    if constexpr (kHasMap) {
#pragma unroll
      for (int r = 0; r < 2; ++r) hide_columns(s[0], r, visible[r]);
    } else {
      hide_outside(s, tile * C.tile_kv, p.keep_first, lane, [&](int, int r) { return bounds(row(r)); });
    }
  }

  // Blocks j and j + 1 of accumulators in 16 bits: a left operand, and as load_matrices() has them.
  template <int Blocks>
  __device__ __forceinline__ static void pack(const float (&accumulators)[Blocks][4], int j, uint32_t (&words)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* pair = &accumulators[j + i / 2][i % 2 * 2];
      words[i] = Multiply<C.element>::pack(pair[0], pair[1]);
    }
  }

  // Scores become unnormalised probabilities.
  __device__ __forceinline__ void exponentiate(float (&s)[kBlocks][4], int32_t tile, float scale_log2,
                                               const float (&offset)[2]) {
    if constexpr (Score<C>::kHasSeries) {
      // Of finite scores that tanh made, the same series without its powers.
      const auto exponent = score_of(p, current()).exponent(is_small);
      exponentiate_by(s, tile, [&](float score, int r) { return exponent(score, offset[r]); });
    } else {
      exponentiate_by(s, tile, [&](float score, int r) { return __fmaf_rn(score, scale_log2, -offset[r]); });
    }
  }
  template <class Exponent>
  __device__ __forceinline__ void exponentiate_by(float (&s)[kBlocks][4], int32_t tile, const Exponent& exponent) {
    float sum[2][2] = {};
#pragma unroll
    for (int j = 0; j < kBlocks; j += 2) {
      exponentiate_16(s, j, exponent, sum);
      if constexpr (C.dropout) drop(s, tile, j);
      pack(s, j, probabilities[j / 2]);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) rows.sum[r] += sum[r][0] + sum[r][1];
  }
};

}  // namespace tessella::device
