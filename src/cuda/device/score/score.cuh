// From q . k to the score that the softmax sees: scale -> softcap -> + bias + ALiBi -> the caller's score modification.
// The order is that of every backend (docs/numerics.md). Parts that a config leaves out cost nothing.
#pragma once

#include "cuda/device/ptx/math.cuh"
#include "cuda/device/score/arrays.cuh"
#include "cuda/device/score/softmax.cuh"
#include "cuda/device/tile/piece.cuh"
#include "cuda/device/tile/sequence.cuh"
#include "portable/score_config.hpp"
#include "portable/scores_params.hpp"
#include "user.hpp"  // user::score_mod and user::mask_mod: the caller's source

namespace tessella::device {

using portable::Element;
using portable::ScoreConfig;

template <ScoreConfig C>
class Score {
 public:
  static constexpr bool kIsPlain = !C.softcap && !C.alibi && !C.bias && !C.score_mod;
  // True if scores stay products of q and k and scale enters with the exponent of 2. ALiBi's penalty is then rounded
  // once for a lane's first query and key, and counted from there.
  static constexpr bool kAreProducts = kIsPlain || (C.alibi && !C.softcap && !C.bias && !C.score_mod &&
                                                    C.elements.q != Element::f32 && !C.batch_invariant);
  // A softcap without other modifications has a series for small scores, which all rows of a warp use or none
  // (softcap.cuh).
  static constexpr bool kHasSeries =
      C.softcap && !C.alibi && !C.bias && !C.score_mod && C.elements.q != Element::f32 && !C.batch_invariant;

  __device__ Score(const portable::ScoresParams& scores, const portable::ArraysParams& arrays, const Sequence& sequence,
                   int32_t batch_idx, int32_t head_idx)
      : scores_(scores), arrays_(arrays), sequence_(sequence), batch_idx_(batch_idx), head_idx_(head_idx) {
    if constexpr (C.alibi) {
      slope_ = static_cast<const float*>(scores.alibi_slopes.data)[batch_idx * scores.alibi_slopes.batch_stride +
                                                                   head_idx * scores.alibi_slopes.stride];
      // This bound keeps the slope finite times any distance.
      if constexpr (kAreProducts) slope_ = fminf(fmaxf(slope_ / scale(), -0x1p96f), 0x1p96f);
    }
    if constexpr (C.bias) bias_ = batch_idx * scores.bias.batch_stride + head_idx * scores.bias.head_stride;
  }

  // Factors from the softmax's scores to natural ones, and to exponents of 2.
  __device__ float scale() const { return kAreProducts ? scale_magnitude() : 1.0f; }
  __device__ float scale_log2() const { return scale() * kLog2e; }

  // The softcap's series of a product, and the largest product for which it holds.
  __device__ float by_series(float s) const {
    const float square = s * s;
    const portable::SoftcapParams& softcap = scores_.softcap;
    return s * __fmaf_rn(__fmaf_rn(square, softcap.series[2], softcap.series[1]), square, softcap.series[0]);
  }
  __device__ float end_of_series() const { return scores_.softcap.end_of_series; }
  // ALiBi's penalty in exponents of 2 for each position between query and key, without other modifications.
  __device__ float slope_log2() const { return slope_ * scale_log2(); }

  // A query and a key from which the positions of other scores are counted.
  struct Origin {
    int32_t query, key;
    float distance;   // from the query's position to the key, times the slope where scores are products
    float q_minus_k;  // for a score modification
  };
  __device__ Origin origin(int32_t query, int32_t key) const {
    const auto distance = static_cast<float>(query + sequence_.len_kv - sequence_.len_q - key);
    return {query, key, kAreProducts ? distance * slope_ : distance, static_cast<float>(query - key)};
  }

  // q - k for a score modification, `positions` more than the origin's; exact below 2^23. Scores of a diagonal share
  // it, and an addition is cheaper than a conversion (two slow instructions).
  __device__ static float q_minus_k(const Origin& origin, int32_t positions) {
    return origin.q_minus_k + static_cast<float>(positions);
  }

  // True if these queries and keys all belong to the sequence.
  __device__ bool are_within(int32_t first_query, int32_t queries, int32_t first_key, int32_t keys) const {
    return (first_query <= sequence_.len_q - queries) & (first_key <= sequence_.len_kv - keys);
  }

  // A query and a key of the sequence. Positions past the lengths become the last ones, unless AreWithin.
  struct Position {
    int32_t query, key;
  };
  template <bool AreWithin>
  __device__ Position position(const Origin& origin, int32_t row, int32_t column) const {
    const Position at = {origin.query + row, origin.key + column};
    return AreWithin ? at : Position{min(at.query, sequence_.len_q - 1), min(at.key, sequence_.len_kv - 1)};
  }

  // The score of the query `row` rows and the key `column` columns after the origin, from s = q . k with the sign of
  // scale. Both may lie past the lengths unless AreWithin. With AreWithin a modification's q - k is of_diagonal, from
  // q_minus_k(): one value for all scores of a diagonal.
  template <bool AreWithin = false>
  __device__ __forceinline__ float value(float s, const Origin& origin, int32_t row, int32_t column,
                                         float of_diagonal = 0) const {
    float tanh;
    s = unmodified<AreWithin>(s, origin, row, column, tanh);
    if constexpr (C.score_mod) {
      const Position at = position<AreWithin>(origin, row, column);
      const float q_minus_k = AreWithin ? of_diagonal : static_cast<float>(at.query - at.key);
      s = user::score_mod(s, batch_idx_, head_idx_, at.query, at.key, q_minus_k, Arrays(arrays_));
    }
    return s;
  }

  // The same before the caller's modification. tanh: output, that of the softcap; not written without one.
  template <bool AreWithin = false>
  __device__ __forceinline__ float unmodified(float s, const Origin& origin, int32_t row, int32_t column,
                                              float& tanh) const {
    if constexpr (kAreProducts) {
      // The penalty is the slope times the distance and has the sign of the slope.
      const float penalty = __fmaf_rn(slope_, static_cast<float>(row - column), origin.distance);
      return s - copysignf(penalty, slope_);
    }
    if constexpr (C.softcap) {
      tanh = tanhf(s * scores_.softcap.scale);
      s = scores_.softcap.cap * tanh;
    } else {
      s *= scale_magnitude();
    }
    if constexpr (C.bias) {
      const Position at = position<AreWithin>(origin, row, column);
      const int64_t element =
          bias_ + at.query * scores_.bias.q_stride + (sequence_.slot_kv + at.key) * scores_.bias.kv_stride;
      constexpr Element kBias = C.bias_is_f32 ? Element::f32 : Element(C.elements.q);
      s += to_float<kBias>(scores_.bias.data, element);
    }
    if constexpr (C.alibi) s = __fmaf_rn(-slope_, fabsf(origin.distance + static_cast<float>(row - column)), s);
    return s;
  }

  // value() in natural units, for code that uses a single score.
  __device__ float natural(float s, const Origin& origin, int32_t row, int32_t column) const {
    return scale() * value(s, origin, row, column);
  }

  // The factor on ALiBi's slope.
  __device__ float distance(const Origin& origin, int32_t row, int32_t column) const {
    return fabsf(static_cast<float>(origin.query + row + sequence_.len_kv - sequence_.len_q - origin.key - column));
  }

 private:
  // q already has the sign of scale. A scale of 0 becomes a very small number, because 0 times a hidden key's -inf is
  // NaN; the scores are equal just the same. Slopes are divided by it too.
  __device__ float scale_magnitude() const { return fmaxf(fabsf(scores_.scale), C.alibi ? 0x1p-100f : 0x1p-126f); }

  const portable::ScoresParams& scores_;
  const portable::ArraysParams& arrays_;
  const Sequence& sequence_;
  int32_t batch_idx_, head_idx_;
  float slope_ = 0;
  int64_t bias_ = 0;
};

}  // namespace tessella::device
