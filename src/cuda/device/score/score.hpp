// From q . k to the score that the softmax sees: scale -> softcap -> + bias + ALiBi -> the caller's score modification.
// The order is that of every backend (docs/numerics.md). Parts that a config leaves out cost nothing.
#pragma once

#include "cuda/device/ptx/math.hpp"
#include "cuda/device/schedule/sequence.hpp"
#include "cuda/device/score/arrays.hpp"
#include "cuda/device/score/softmax.hpp"
#include "portable/forward_params.hpp"
#include "portable/score_config.hpp"
#include "user.hpp"  // user::score_mod and user::mask_mod: the caller's source

namespace tessella::device {

using portable::Element;
using portable::ScoreConfig;

template <Element E>
__device__ __forceinline__ float to_float(const void* data, int64_t idx) {
  if constexpr (E == Element::f32) {
    return static_cast<const float*>(data)[idx];
  } else if constexpr (E == Element::bf16) {
    return __uint_as_float(static_cast<uint32_t>(static_cast<const uint16_t*>(data)[idx]) << 16);
  } else {
    return ptx::f16_to_float(static_cast<const uint16_t*>(data)[idx]);
  }
}

// SaturatesSquares: q was multiplied so that squares of what the series serves are at most 1.
template <ScoreConfig C, bool SaturatesSquares = false>
class Score {
 public:
  static constexpr bool kIsPlain = !C.softcap && !C.alibi && !C.bias && !C.score_mod;
  // Scores stay products of q and k, and scale enters with the exponent of 2. What ALiBi takes off is then rounded for
  // a lane's first query and key, and counted from there.
  static constexpr bool kAreProducts =
      kIsPlain || (C.alibi && !C.softcap && !C.bias && !C.score_mod && C.element != Element::f32 && !C.batch_invariant);
  // Softcap alone: softmax sees exponents of 2. A series has them out of products, cheaply, where scores are far from
  // the softcap; they are bounded there, so they are taken against zero and nobody looks for a maximum.
  static constexpr int32_t kSomeKeys = 16;
  static constexpr bool kHasSeries = C.series_terms > 0;
  static_assert(!kHasSeries || (C.softcap && !C.alibi && !C.bias && !C.score_mod && C.element != Element::f32 &&
                                !C.batch_invariant),
                "the series takes products, of a warp's rows together");
  // Where element masks may leave a row a single key, out is divided by a sum of rounded probabilities.
  static constexpr bool kRoundsSums = kHasSeries && C.mask == portable::MaskLevel::bits;

  __device__ Score(const portable::ForwardParams& p, const Sequence& sequence, int32_t batch_idx, int32_t head_idx)
      : p_(p), sequence_(sequence), batch_idx_(batch_idx), head_idx_(head_idx) {
    if constexpr (C.alibi) {
      slope_ = static_cast<const float*>(
          p.alibi_slopes.data)[batch_idx * p.alibi_slopes.batch_stride + head_idx * p.alibi_slopes.stride];
      // Times any distance it stays finite.
      if constexpr (kAreProducts) slope_ = fminf(fmaxf(slope_ / scale(), -0x1p96f), 0x1p96f);
    }
    if constexpr (C.bias) bias_ = batch_idx * p.bias.batch_stride + head_idx * p.bias.head_stride;
  }

  // From what the softmax sees to natural scores and to exponents of 2.
  __device__ float scale() const { return kHasSeries ? kLn2 : kAreProducts ? q_scale() : 1.0f; }
  __device__ float scale_log2() const { return kHasSeries ? 1.0f : scale() * kLog2e; }

  // True if the series serves some products at all, of rows that see so many keys or more, and those whose squares are
  // no larger. Against a maximum the probability of a row's only key is 1, against zero it is rounded like all others:
  // among some it does no harm.
  __device__ bool may_use_series(int32_t keys) const {
    return p_.softcap.square >= 0 && (kRoundsSums || keys >= kSomeKeys);
  }
  __device__ bool series_serves(float square) const { return square <= p_.softcap.square; }
  // Saturated at 1, behind what the series serves: of two terms -inf would become inf otherwise.
  __device__ __forceinline__ static float square_of(float s) {
    return SaturatesSquares ? ptx::saturated_square(s) : s * s;
  }
  // The largest square of products in blocks j and j + 1 and of `square`. Zero and positive numbers keep their order as
  // integers; NaN is larger, or 0 where squares saturate: a row that has one is NaN either way.
  template <int Blocks>
  __device__ __forceinline__ static float square_max_16(const float (&s)[Blocks][4], int j, float square) {
    uint32_t max = __float_as_uint(square);
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const float first = s[j + i / 4][i % 4], second = s[j + i / 4][i % 4 + 1];
      max = __vimax3_u32(max, __float_as_uint(square_of(first)), __float_as_uint(square_of(second)));
    }
    return __uint_as_float(max);
  }
  // What ALiBi alone takes off a score, in exponents of 2, for each place between query and key.
  __device__ float slope_log2() const { return slope_ * scale_log2(); }

  // An exponent of 2: of a product by the series (-inf of a hidden one), else it is there, and finite.
  __device__ auto exponent(bool by_series) const {
    const float c0 = by_series ? p_.softcap.series[0] : 1;
    const float c1 = by_series ? p_.softcap.series[1] : 0, c2 = by_series ? p_.softcap.series[2] : 0;
    return [=](float s) {
      const float square = square_of(s);
      return s * __fmaf_rn(C.series_terms == 2 ? c1 : __fmaf_rn(square, c2, c1), square, c0);
    };
  }

  // A query and a key, from which scores of some more are counted.
  struct Corner {
    int32_t query, key;
    float distance;   // from the query's place to the key, times the slope where scores are products
    float q_minus_k;  // for a score modification
  };
  __device__ Corner corner(int32_t query, int32_t key) const {
    const auto distance = static_cast<float>(query + sequence_.len_kv - sequence_.len_q - key);
    return {query, key, kAreProducts ? distance * slope_ : distance, static_cast<float>(query - key)};
  }

  // q - k for a score modification, so many more than the corner's; below 2^23 exactly. An addition for all scores of a
  // diagonal, where a conversion is two slow instructions.
  __device__ static float q_minus_k(const Corner& corner, int32_t places) {
    return corner.q_minus_k + static_cast<float>(places);
  }

  // True if so many queries and keys from these on are the sequence's.
  __device__ bool are_within(int32_t first_query, int32_t queries, int32_t first_key, int32_t keys) const {
    return (first_query <= sequence_.len_q - queries) & (first_key <= sequence_.len_kv - keys);
  }

  // A query and a key of the sequence: the last ones where they lie past the lengths, unless AreWithin.
  struct Place {
    int32_t query, key;
  };
  template <bool AreWithin>
  __device__ Place place(const Corner& corner, int32_t row, int32_t column) const {
    const Place at = {corner.query + row, corner.key + column};
    return AreWithin ? at : Place{min(at.query, sequence_.len_q - 1), min(at.key, sequence_.len_kv - 1)};
  }

  // The score of the query `row` and the key `column` behind the corner's, out of s = q . k with the sign of scale.
  // Both may lie past the lengths unless AreWithin: then a modification's q - k is of_diagonal, q_minus_k()'s, one
  // value for all scores of a diagonal.
  template <bool AreWithin = false>
  __device__ __forceinline__ float value(float s, const Corner& corner, int32_t row, int32_t column,
                                         float of_diagonal = 0) const {
    float tanh;
    s = unmodified<AreWithin>(s, corner, row, column, tanh);
    if constexpr (C.score_mod) {
      const Place at = place<AreWithin>(corner, row, column);
      const float q_minus_k = AreWithin ? of_diagonal : static_cast<float>(at.query - at.key);
      s = user::score_mod(s, batch_idx_, head_idx_, at.query, at.key, q_minus_k, Arrays(p_));
    }
    return s;
  }

  // The same before the caller's modification. tanh: of the softcap, or not written.
  template <bool AreWithin = false>
  __device__ __forceinline__ float unmodified(float s, const Corner& corner, int32_t row, int32_t column,
                                              float& tanh) const {
    if constexpr (kAreProducts) {
      // Its size is that of slope times distance, its sign that of the slope.
      const float penalty = __fmaf_rn(slope_, static_cast<float>(row - column), corner.distance);
      return s - copysignf(penalty, slope_);
    }
    if constexpr (C.softcap) {
      tanh = tanhf(s * p_.softcap.scale);
      s = p_.softcap.cap * (kHasSeries ? kLog2e : 1.0f) * tanh;
    } else {
      s *= q_scale();
    }
    if constexpr (C.bias) {
      const Place at = place<AreWithin>(corner, row, column);
      const int64_t element = bias_ + at.query * p_.bias.q_stride + (sequence_.slot_kv + at.key) * p_.bias.kv_stride;
      constexpr Element kBias = C.bias_is_f32 ? Element::f32 : Element(C.element);
      s += to_float<kBias>(p_.bias.data, element);
    }
    if constexpr (C.alibi) s = __fmaf_rn(-slope_, fabsf(corner.distance + static_cast<float>(row - column)), s);
    return s;
  }

  // value() in natural units, for a score of its own.
  __device__ float natural(float s, const Corner& corner, int32_t row, int32_t column) const {
    return scale() * value(s, corner, row, column);
  }

  // What ALiBi's slope is multiplied by.
  __device__ float distance(const Corner& corner, int32_t row, int32_t column) const {
    return fabsf(static_cast<float>(corner.query + row + sequence_.len_kv - sequence_.len_q - corner.key - column));
  }

 private:
  // Its sign is in q already. Zero would make 0 * -inf of a hidden key: a very small number gives equal scores too. It
  // also divides slopes.
  __device__ float q_scale() const { return fmaxf(fabsf(p_.scale), C.alibi ? 0x1p-100f : 0x1p-126f); }

  const portable::ForwardParams& p_;
  const Sequence& sequence_;
  int32_t batch_idx_, head_idx_;
  float slope_ = 0;
  int64_t bias_ = 0;
};

// A softcap alone, of products beyond its series. Blocks take turns in two places, so that there is code for these
// alone: unrolled it was a fifth of the kernel.
template <class Score, int Blocks>
__device__ __forceinline__ void cap(const Score& score, float (&s)[Blocks][4]) {
#pragma unroll 1
  for (int turn = 0; turn < Blocks; turn += 2) {
    float capped[2][4];
#pragma unroll
    for (int i = 0; i < 8; ++i) capped[i / 4][i % 4] = score.value(s[i / 4][i % 4], {}, 0, 0);
#pragma unroll
    for (int j = 0; j < Blocks; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[j][i] = j + 2 < Blocks ? s[j + 2][i] : capped[j + 2 - Blocks][i];
    }
  }
}

}  // namespace tessella::device
