// From a tile's products of q and k to probabilities, by a warpgroup of forward_sm90: features, masks, softmax.
#pragma once

#include "cuda/device/score/band_mask.cuh"
#include "cuda/device/score/dropout.cuh"
#include "cuda/device/score/score.cuh"
#include "cuda/device/score/softcap.cuh"
#include "cuda/device/tile/multiply.cuh"
#include "cuda/kernels/forward_sm90/exponents.cuh"
#include "cuda/kernels/forward_sm90/key_walk_sm90.cuh"
#include "cuda/kernels/forward_sm90/softmax_rows.cuh"

namespace tessella::device {

template <ForwardSm90Config C>
struct ScoresSm90 {
  using Lane = LaneSm90<C>;
  using Score = device::Score<C.score>;
  static constexpr int kBlocks = C.tile_kv / 8;
  using Tile = float[1][kBlocks][4];
  // ALiBi alone joins the exponents where the keys of a tile lie on one side of the warp's queries: scores are products
  // there (AlibiExponents).
  static constexpr bool kHasSides = C.score.alibi && Score::kAreProducts;

  const ForwardParams& p;
  uint32_t probabilities[kBlocks / 2][4];  // of a tile, as left operands of o += p v
  WatchedRows rows;
  KeyWalk<C> walk;
  // Of the query tile, from begin() on. With kHasSides: the position of the warp's first query, and what ALiBi takes
  // off an exponent of 2 for each position between query and key.
  int32_t position;
  float slope;
  // With a score modification: whether all of the warp's queries are the sequence's, the lane's first one, the head.
  bool has_all_rows;
  int32_t lane_query, head_idx = 0;

  __device__ __forceinline__ explicit ScoresSm90(const ForwardParams& params) : p(params) {}

  // Of the current query tile; with a score modification from begin() on.
  __device__ Score score(const Lane& at) const {
    const auto& of = at.current();
    return Score(p.scores, p.arrays, of.sequence, of.work.batch_idx, C.score.score_mod ? head_idx : of.work.head_idx);
  }

  __device__ __forceinline__ void begin(const Lane& at) {
    const auto& of = at.current();
    if constexpr (kHasSides) {
      slope = score(at).slope_log2();
      position = of.sequence.band.position(at.first_of_warp());
    }
    if constexpr (C.score.score_mod) {
      has_all_rows = __all_sync(kAllLanes, at.first_of_warp() + portable::kWarpRows <= of.sequence.len_q);
      lane_query = at.first_of_warp() + at.lane / 4;
      head_idx = of.work.head_idx;
    }
  }

  // Features and masks, up to what softmax() adds.
  __device__ __forceinline__ void finish_scores(const Lane& at, Tile& s, int32_t tile) const {
    if constexpr (Score::kHasSeries) {
      cap(score(at), s);
    } else if constexpr (!kHasSides && !Score::kIsPlain) {
      // A tile seen whole has no key behind the sequence's. It goes its own way up to the end, or the assembler moves
      // 11 of its scores to where the other way has them.
      if (C.score.score_mod && !C.score.batch_invariant && has_all_rows && walk.is_full(tile)) {
        modify<true>(at, s[0], tile);
        ptx::keep_in_place(s[0]);
        return;
      }
      modify<false>(at, s[0], tile);
    }
    hide(at, s[0], tile);
    ptx::keep_in_place(s[0]);  // those of tiles with masks and without in the same registers
  }
  // Softcap, bias, ALiBi and the caller's score modification. AreWithin: as in Score::value(); false serves as well.
  template <bool AreWithin>
  __device__ __forceinline__ void modify(const Lane& at, float (&s)[kBlocks][4], int32_t tile) const {
    const Score of = score(at);
    const auto origin = of.origin(C.score.score_mod ? lane_query : at.current().queries.first + at.row(0),
                                  at.current().first_key(tile) + at.lane % 4 * 2);
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float q_minus_k = Score::q_minus_k(origin, (i / 2 - j) * 8 - i % 2);
        s[j][i] = of.template value<AreWithin>(s[j][i], origin, i / 2 * 8, j * 8 + i % 2, q_minus_k);
      }
      // What 16 keys load is used before more is loaded: a whole tile's would fill all registers.
      if ((C.score.bias || C.score.score_mod) && j % 2 == 1) ptx::keep_loads_in_place();
    }
  }
  __device__ __forceinline__ void hide(const Lane& at, float (&s)[kBlocks][4], int32_t tile) const {
    if (walk.is_full(tile)) return;
    uint32_t columns[2];
    walk.find_columns(at, tile, columns);
#pragma unroll
    for (int r = 0; r < 2; ++r) hide_columns(s, r, columns[r]);
  }

  // Scores of a tile become unnormalised probabilities, against the maxima that rows have if they serve, else against
  // new ones. rescale(factor): multiplies o.
  template <class Rescale>
  __device__ __forceinline__ void softmax(const Lane& at, Tile& s, int32_t tile, float scale_log2,
                                          const Rescale& rescale) {
    float sum[2];
    bool is_done = false;
    if constexpr (!C.score.batch_invariant) {
      const int side = kHasSides ? side_of(at, tile) : 1;
      // By votes, so that the compiler knows that all lanes go the same way.
      if (__all_sync(kAllLanes, rows.may_reuse_max && side != 0)) {
        const bool serves = kHasSides ? exponentiate(at, s[0], tile, alibi_exponents(at, tile, side, scale_log2), sum)
                                      : exponentiate(at, s[0], tile, plain_exponents(scale_log2), sum);
        is_done = __all_sync(kAllLanes, serves);
      }
    }
    if (!is_done) {
      if constexpr (kHasSides) modify<false>(at, s[0], tile);
      take_maxima<C.score.batch_invariant>(s, rows, scale_log2, rescale);
      exponentiate(at, s[0], tile, plain_exponents(scale_log2), sum);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) rows.sum[r] += sum[r];
  }

  // Probabilities of a tile's scores, which stay, and the lane's sums of them. False if the sums are too large.
  template <class Exponents>
  __device__ __forceinline__ bool exponentiate(const Lane& at, const float (&s)[kBlocks][4], int32_t tile,
                                               const Exponents& exponent, float (&sum)[2]) {
#pragma unroll
    for (int j = 0; j < kBlocks; j += 2) {
      float probability[2][4];
      exponentiate_16(s, j, exponent, probability, sum);
      if constexpr (C.score.dropout) drop(at, probability, tile, j);
      pack(probability, 0, probabilities[j / 2]);
    }
    return !(fmaxf(sum[0], sum[1]) > kLargestSum);
  }
  // Zeroes what dropout takes from the probabilities of blocks j and j + 1, 16 keys.
  __device__ __forceinline__ void drop(const Lane& at, float (&probability)[2][4], int32_t tile, int j) const {
    device::drop(probability, 0, dropout_of(p.scores), dropout_head(p.sequences, at.current().work),
                 (at.current().queries.first + at.row(0)) / 16, (at.current().first_key(tile) + j * 8) / 16, at.lane);
  }

  __device__ PlainExponents plain_exponents(float scale_log2) const {
    return {scale_log2, {rows.offset[0], rows.offset[1]}};
  }
  __device__ AlibiExponents alibi_exponents(const Lane& at, int32_t tile, int side, float scale_log2) const {
    AlibiExponents exponents = {scale_log2, {}, side > 0 ? slope : -slope};
    const auto distance = static_cast<float>(position + at.lane / 4 - at.current().first_key(tile) - at.lane % 4 * 2);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      exponents.offset[r] = __fmaf_rn(exponents.step, distance + static_cast<float>(r * 8), rows.offset[r]);
    }
    return exponents;
  }
  // 1: the tile's keys lie before the warp's queries, -1: behind them, 0: neither, or the slope is too steep.
  __device__ __forceinline__ int side_of(const Lane& at, int32_t tile) const {
    // A row's offset is rounded at the size of the slope times a tile's keys: to 2^-16 at the most.
    constexpr float kSteepest = 2;
    if (!(fabsf(slope) < kSteepest)) return 0;
    const int32_t key = at.current().first_key(tile);
    return position >= key + C.tile_kv - 1 ? 1 : position + portable::kWarpRows - 1 <= key ? -1 : 0;
  }

  // Blocks j and j + 1 of accumulators in 16 bits: a left operand, and as load_matrices() has them.
  template <int Blocks>
  __device__ __forceinline__ static void pack(const float (&accumulators)[Blocks][4], int j, uint32_t (&words)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* pair = &accumulators[j + i / 2][i % 2 * 2];
      words[i] = Multiply<C.score.elements.p>::pack(pair[0], pair[1]);
    }
  }
};

}  // namespace tessella::device
