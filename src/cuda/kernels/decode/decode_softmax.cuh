// Decode's softmax: from scores of a warp's 16 keys to probabilities in shared memory, and the maxima that are
// subtracted.
//
// All warps of a group subtract the same maximum for a row. If a score is far above it, the warps exchange their new
// maxima, rescale, and store their probabilities again.
#pragma once

#include "cuda/device/score/score.cuh"
#include "cuda/kernels/decode/decode_states.cuh"
#include "cuda/kernels/decode/transposed.cuh"

namespace tessella::device {

template <DecodeConfig C>
struct DecodeSoftmax : DecodeStates<C> {
  using Block = BlockDecode<C>;
  using DecodeStates<C>::DecodeStates;
  using Block::p, Block::lane, Block::warp, Block::kBlocks, Block::kScoreBlocks, Block::kTiles, Block::kGroupWarps,
      Block::kOwnPieces, Block::kHasPower, Block::E, Block::row_infos, Block::tops, Block::maxima, Block::tile,
      Block::first_of_group, Block::s_score_probs, Block::s_scales, Block::row_anew, Block::score_row,
      Block::score_row_anew, Block::offset, Block::row_sight;
  using typename Block::Rows, typename Block::Sums;

  // Applies softcap and ALiBi.
  __device__ __forceinline__ void modify(float (&s)[kScoreBlocks][4], int32_t key) const {
#pragma unroll
    for (int n = 0; n < kScoreBlocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& of = s[n][i];
        if constexpr (C.score.softcap) {
          of = p.scores.softcap.cap * tanhf(of * p.scores.softcap.scale);
        } else {
          of *= fabsf(p.scores.scale);
        }
        if constexpr (C.score.alibi) {
          const RowInfo& info = row_infos()[score_row(n, i % 2)];
          of = __fmaf_rn(-info.slope, fabsf(static_cast<float>(info.position - key - i / 2 * 8)), of);
        }
      }
    }
  }

  // Hides keys that a row does not see. key: the lane's first key.
  __device__ __forceinline__ void mask(float (&s)[kScoreBlocks][4], const DecodeWork& work, int32_t key) const {
    const auto sight = row_sight(work);
#pragma unroll
    for (int n = 0; n < kScoreBlocks; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int row_idx = score_row_anew(n, c);
        const RowInfo& row = row_infos()[row_idx];
#pragma unroll
        for (int i = c; i < 4; i += 2) {
          if (!sight.sees(row, min(row_idx, work.num_rows - 1), key + i / 2 * 8)) s[n][i] = -kInfinity;
        }
      }
    }
  }

  static constexpr float kHighestExponent = 14, kSmallestSum = 0x1p-8f;  // with exponents against zero

  // k_scale and v_scale of the lane's two keys.
  struct Scales {
    float k[2], v[2];
  };
  __device__ __forceinline__ void load_scales(Scales& scales, int stage) const {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const uint32_t at = s_scales(stage, warp) + (lane / 4 + c * 8) * 4;
      scales.k[c] = __uint_as_float(ptx::load_word(at));
      scales.v[c] = __uint_as_float(ptx::load_word(at + portable::kDecodeTile * 4));
    }
  }

  // v_scale multiplies probabilities, and a small v_scale would make them vanish in f16. They are therefore divided by
  // a power of two, 8 to 64 times below the largest |v_scale| so far. Probabilities up to 2^kLag then do not overflow,
  // and those down to 2^-17 keep all bits. If the power lags behind, it rises, and o is rescaled.
  static constexpr float kLeastPower = 0x1p-120f, kMostOfPower = 64;
  __device__ __forceinline__ static bool is_power_behind(float power, float v_scale) {
    return fabsf(v_scale) > power * kMostOfPower;
  }
  __device__ __forceinline__ static float inverse_of_power(float power) {
    return __uint_as_float(0x7F000000 - __float_as_uint(power));
  }
  // Raises the power to the largest one that the group's warps need in this step.
  __device__ __forceinline__ void raise_power(int stage, Rows& rows, Sums& o) const {
    float top = 0;
#pragma unroll
    for (int i = 0; i < kGroupWarps * portable::kDecodeTile; i += 32) {
      const int key = min(i + lane, kGroupWarps * portable::kDecodeTile - 1);
      const uint32_t at = s_scales(stage, first_of_group() + key / portable::kDecodeTile) +
                          (portable::kDecodeTile + key % portable::kDecodeTile) * 4;
      top = fmaxf(top, fabsf(__uint_as_float(ptx::load_word(at))));
    }
#pragma unroll
    for (int step = 1; step < 32; step *= 2) top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, step));
    if (!is_power_behind(rows.power, top)) return;
    const float below_top = __uint_as_float(__float_as_uint(top) & 0x7F800000) * 0.125f;
    const float power = fminf(fmaxf(below_top, kLeastPower), 0x1p120f);
    const float factor = rows.power * inverse_of_power(power);
    rows.power = power;
#pragma unroll
    for (int piece = 0; piece < kOwnPieces; ++piece) {
#pragma unroll
      for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) o[piece][n][i] *= factor;
      }
    }
  }

  // Stores probabilities of the warp's 16 keys, times v_scale, to shared memory. sums: those of this lane's
  // probabilities.
  __device__ __forceinline__ void exponentiate(const float (&s)[kScoreBlocks][4], const Rows& rows, float scale_log2,
                                               const Scales& scales, int buffer, float (&sums)[kScoreBlocks][2]) const {
#pragma unroll
    for (int n = 0; n < kScoreBlocks; ++n) {
      float probs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) probs[i] = ptx::exp2((s[n][i] - offset(rows.max[n][i % 2])) * scale_log2);
#pragma unroll
      for (int c = 0; c < 2; ++c) sums[n][c] = probs[c] + probs[c + 2];
      if constexpr (portable::is_quantized(C)) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          probs[i] *= kHasPower ? scales.v[i / 2] * inverse_of_power(rows.power) : scales.v[i / 2];
        }
      }
      Transposed<E>::store_probs(s_score_probs(buffer, n), probs, lane);
    }
  }

  // The largest value over the lanes of the same query rows.
  __device__ __forceinline__ static float max_of_keys(float x) {
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 4));
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 8));
    return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 16));
  }
  // True if the maximum is more than kLag below a step's largest score, so that it must rise.
  __device__ __forceinline__ static bool is_behind(float max, float score, float scale_log2) {
    return (score - max) * scale_log2 > kLag;  // true from -inf on, false for -inf twice
  }
  __device__ __forceinline__ void raise_max(const float (&s)[kBlocks][4], Rows& rows, Sums& o, float scale_log2) const {
    float tops_of_rows[kBlocks][2];
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        tops_of_rows[n][c] = max_of_keys(fmaxf(s[n][c], s[n][c + 2]));
        if (!C.warps_alone && lane < 4) tops()[warp * C.rows + row_anew(n, c)] = tops_of_rows[n][c];
      }
    }
    if constexpr (!C.warps_alone) __syncthreads();
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float top = tops_of_rows[n][c];
        if constexpr (!C.warps_alone) {
#pragma unroll
          for (int w = 0; w < C.num_warps; ++w) top = fmaxf(top, tops()[w * C.rows + row_anew(n, c)]);
        }
        if (!is_behind(rows.max[n][c], top, scale_log2)) continue;
        const float factor = ptx::exp2((rows.max[n][c] - top) * scale_log2);
        rows.max[n][c] = top;
        rows.sum[n][c] *= factor;
#pragma unroll
        for (int piece = 0; piece < kOwnPieces; ++piece) {
          o[piece][n][c] *= factor;
          o[piece][n][c + 2] *= factor;
        }
      }
    }
  }

  // The same if other warps score some rows of o, so that maxima of all rows are in shared memory too. publish_max()
  // follows the next barrier, after which the new probabilities are visible.
  __device__ __forceinline__ void raise_max_of_all(const float (&s)[kScoreBlocks][4], Rows& rows, Sums& o,
                                                   float scale_log2) const {
#pragma unroll
    for (int n = 0; n < kScoreBlocks; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float top = max_of_keys(fmaxf(s[n][c], s[n][c + 2]));
        if (lane < 4) tops()[tile() * C.rows + score_row_anew(n, c)] = top;
      }
    }
    __syncthreads();
    const auto top_of = [&](int row) {
      float top = -kInfinity;
#pragma unroll
      for (int of_tile = 0; of_tile < kTiles; ++of_tile) top = fmaxf(top, tops()[of_tile * C.rows + row]);
      return top;
    };
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int row = row_anew(n, c);
        const float max = maxima()[row], top = top_of(row);
        if (!is_behind(max, top, scale_log2)) continue;
        const float factor = ptx::exp2((max - top) * scale_log2);
#pragma unroll
        for (int piece = 0; piece < kOwnPieces; ++piece) {
          o[piece][n][c] *= factor;
          o[piece][n][c + 2] *= factor;
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kScoreBlocks; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float top = top_of(score_row_anew(n, c));
        if (!is_behind(rows.max[n][c], top, scale_log2)) continue;
        rows.sum[n][c] *= ptx::exp2((rows.max[n][c] - top) * scale_log2);
        rows.max[n][c] = top;
      }
    }
  }
  __device__ __forceinline__ void publish_max(const Rows& rows) const {
    if (tile() != 0 || lane >= 4) return;
#pragma unroll
    for (int n = 0; n < kScoreBlocks; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) maxima()[score_row_anew(n, c)] = rows.max[n][c];
    }
  }
};

}  // namespace tessella::device
