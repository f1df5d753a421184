// From a tile's products of q and k of 8 bits to probabilities of 8 bits, by a warpgroup of forward_f8_sm90.
//
// The rule for P: every key tile has a frame for each row, in which the row's maximum in the tile becomes 256 of e4m3's
// 448, however scores jump; but no frame is more than kSpan exponents of 2 below the row's maximum so far, so that out
// in a low frame stays finite. Probabilities are rounded to nearest even: the largest one keeps its value, and what is
// below 2^-18 of it becomes 0. So a tile keeps its weight beside a far larger one, and a key that has a row to itself
// its value. Out and sums move from frame to frame. Sums, and so lse, are of probabilities before rounding. A row's
// result depends on that row alone.
#pragma once

#include "cuda/kernels/forward_sm90/scores_sm90.cuh"

namespace tessella::device {

template <ForwardSm90Config C>
struct ScoresF8Sm90 : ScoresSm90<C> {
  using Base = ScoresSm90<C>;
  using Lane = typename Base::Lane;
  using Tile = typename Base::Tile;
  using Score = typename Base::Score;
  using Base::p, Base::walk;
  static constexpr int kBlocks = Base::kBlocks;
  static constexpr bool kHasKeyScales = C.scales == portable::KeyScales::key;
  static constexpr float kTop = 8;  // the largest probability, as an exponent of 2
  static constexpr float kSpan = 16;

  uint32_t probabilities[kBlocks / 4][4];  // of a tile, as left operands of o += p v
  // Of the rows, as exponents of 2: maximum so far, and what becomes 256 in the latest tile; sums in that frame.
  float max[2], frame[2], sum[2];
  float scale_q[2];  // factors on the rows of q, times that from scores to exponents
  // Of a tile: exponents are scale_log2 times its products, or its finished scores, plus offset.
  float scale_log2[2], offset[2];

  __device__ __forceinline__ explicit ScoresF8Sm90(const ForwardParams& params) : Base(params) {}

  __device__ __forceinline__ void begin(const Lane& at) {
    Base::begin(at);
    const auto& of = at.current();
    const portable::ForwardSm90Params& params = at.block.p;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      max[r] = frame[r] = -kInfinity;
      sum[r] = 0;
      const int32_t row = of.sequence.row_q + min(of.queries.first + at.row(r), of.sequence.len_q - 1);
      scale_q[r] = row_scale(params.q_scale, params.scale_block, of.work.batch_idx, row, of.work.head_idx);
      if (Score::kIsPlain) scale_q[r] *= this->score(at).scale_log2();
    }
  }

  // The factor of the tile's keys, unless each has its own, before scores are there. s_scales: theirs.
  __device__ __forceinline__ void load_scale(uint32_t s_scales) {
    const float of_tile = kHasKeyScales ? 1.0f : __uint_as_float(ptx::load_word(s_scales));
    scale_log2[0] = scale_q[0] * of_tile;
    scale_log2[1] = scale_q[1] * of_tile;
  }

  // Factors, features and masks. IsFull: the warpgroup sees the tile whole.
  template <bool IsFull>
  __device__ __forceinline__ void finish_scores(const Lane& at, Tile& s, int32_t tile, uint32_t s_scales) {
    if constexpr (kHasKeyScales) multiply_columns(s, s_scales, at.lane);
    if constexpr (!Score::kIsPlain) {
      multiply_rows(s, this->score(at).scale_log2());
      Base::template modify<false>(at, s[0], tile);
    }
    if (!IsFull) Base::hide(at, s[0], tile);
    ptx::keep_in_place(s[0]);
  }

  // Finds the frames of a tile's scores. factor: from those of the tile before.
  __device__ __forceinline__ void take_frames(const Lane& at, Tile& s, int32_t tile, float (&factor)[2]) {
    float next[2], top[2];
    bool serves = true;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // lane_max() returns -inf for a lane of negative scores. The frame is right all the same if it is not negative.
      const float of_tile = row_max(lane_max(s[0], r) * scale_log2[r]);
      top[r] = fmaxf(max[r], of_tile);
      const float least = top[r] - kSpan;
      serves = serves && fmaxf(of_tile, least) >= 0 && top[r] <= kLargeMax && scale_log2[r] >= kSmallest;
      next[r] = fmaxf(of_tile, least);
      offset[r] = kTop - next[r];
    }
    if (__all_sync(kAllLanes, serves)) [[likely]] {
      max[0] = top[0];
      max[1] = top[1];
    } else {
      take_rare_frames(at, s, tile, next);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      factor[r] = next[r] == frame[r] ? 1.0f : ptx::exp2(frame[r] - next[r]);
      frame[r] = next[r];
      sum[r] *= factor[r];
    }
  }

  // Scores of blocks [from, until) become probabilities before rounding, and sums take them.
  template <int From, int Until>
  __device__ __forceinline__ void exponentiate(const Lane& at, Tile& s, int32_t tile) {
    float part[2][2] = {{0, 0}, {0, 0}};
#pragma unroll
    for (int j = From; j < Until; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& of = s[0][j][i];
        of = ptx::exp2(__fmaf_rn(of, scale_log2[i / 2], offset[i / 2]));
        part[i / 2][i % 2] += of;
      }
      if constexpr (C.score.dropout) {
        if (j % 2 != 0) {
          float(&pair)[2][4] = *reinterpret_cast<float(*)[2][4]>(&s[0][j - 1]);
          Base::drop(at, pair, tile, j - 1);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] += part[r][0] + part[r][1];
  }

  // Rounds the tile's probabilities.
  __device__ __forceinline__ void round(const Tile& s) {
#pragma unroll
    for (int c = 0; c < kBlocks / 4; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* first = &s[0][c * 4 + i / 2 * 2][i % 2 * 2];
        const float* second = &s[0][c * 4 + i / 2 * 2 + 1][i % 2 * 2];
        probabilities[c][i] = ptx::pack_e4m3(first[0], first[1], second[0], second[1]);
      }
    }
  }

  // With factors of keys: the largest of v's in a tile, by which all are divided before they multiply probabilities.
  __device__ __forceinline__ static float largest_of_columns(uint32_t s_scales, int lane) {
    float largest = 0;
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
      const uint2 pair = ptx::load_words(s_scales + (j * 8 + lane % 4 * 2) * 4);
      largest = fmaxf(largest, fmaxf(fabsf(__uint_as_float(pair.x)), fabsf(__uint_as_float(pair.y))));
    }
    return row_max(largest);
  }
  // s *= by * the factors of the columns.
  __device__ __forceinline__ static void multiply_columns(Tile& s, uint32_t s_scales, int lane, float by = 1) {
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
      const uint2 pair = ptx::load_words(s_scales + (j * 8 + lane % 4 * 2) * 4);
#pragma unroll
      for (int i = 0; i < 4; ++i) s[0][j][i] *= __uint_as_float(i % 2 == 0 ? pair.x : pair.y) * by;
      if (j % 2 == 1) ptx::keep_loads_in_place();
    }
  }

 private:
  static constexpr float kSmallest = 0x1p-100f;  // factors beside which a hidden score is hidden for certain

  // The rows' factors become part of the scores, of all rows or of those whose factors are below kSmallest.
  __device__ __forceinline__ void multiply_rows(Tile& s, float log2, bool all = true) {
    float by[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool takes = all || !(scale_log2[r] >= kSmallest);
      by[r] = takes ? scale_log2[r] : 1.0f;
      scale_log2[r] = takes ? log2 : scale_log2[r];
    }
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[0][j][i] *= by[i / 2];
    }
  }

  // Of rows whose frames are negative, or so large that exponents would lose their last bits, or whose factors are
  // negative or too small. Other rows get what they had.
  __device__ __forceinline__ void take_rare_frames(const Lane& at, Tile& s, int32_t tile, float (&next)[2]) {
    if (Score::kIsPlain && !__all_sync(kAllLanes, fminf(scale_log2[0], scale_log2[1]) >= kSmallest)) {
      multiply_rows(s, 1, false);
      Base::hide(at, s[0], tile);
    }
    float own[1][2];
    find_max(s, own);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float of_tile = row_max(own[0][r]), exponent = of_tile * scale_log2[r];
      max[r] = fmaxf(max[r], exponent);
      if (max[r] == -kInfinity) {
        next[r] = max[r];
        offset[r] = 0;
        continue;
      }
      next[r] = fmaxf(exponent, max[r] - kSpan);
      offset[r] = kTop - next[r];
      if (!(fabsf(next[r]) > kLargeMax) || of_tile == -kInfinity) continue;
      offset[r] = kTop + (exponent - next[r]);
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) s[0][j][r * 2 + c] -= of_tile;
      }
    }
  }
};

}  // namespace tessella::device
