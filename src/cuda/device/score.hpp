// From q . k to the score that the softmax sees: scale -> softcap -> + bias + ALiBi -> the caller's text.
// The order is that of every backend (docs/numerics.md). Parts that a config leaves out cost nothing.
#pragma once

#include "cuda/device/arrays.hpp"
#include "cuda/device/ptx/math.hpp"
#include "cuda/device/sequence.hpp"
#include "cuda/device/softmax.hpp"
#include "portable/forward_config.hpp"
#include "portable/forward_params.hpp"
#include "user.hpp"  // user::score and user::keep: the caller's texts

namespace tessella::device {

using portable::Element;
using portable::ForwardConfig;

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

template <ForwardConfig C>
class Score {
 public:
  static constexpr bool kIsPlain = !C.softcap && !C.alibi && !C.bias && !C.score;

  __device__ Score(const portable::ForwardParams& p, const Sequence& sequence, int32_t batch_idx, int32_t head_idx)
      : p_(p), sequence_(sequence), batch_idx_(batch_idx), head_idx_(head_idx) {
    if constexpr (C.alibi) {
      slope_ = static_cast<const float*>(
          p.alibi_slopes.data)[batch_idx * p.alibi_slopes.batch_stride + head_idx * p.alibi_slopes.stride];
    }
    if constexpr (C.bias) bias_ = batch_idx * p.bias.batch_stride + head_idx * p.bias.head_stride;
  }

  // From what the softmax sees, q . k where nothing comes between, to natural scores and to exponents of 2.
  __device__ float scale() const { return kIsPlain ? q_scale() : 1.0f; }
  __device__ float scale_log2() const { return scale() * kLog2e; }

  // Some keys of one query: those at `columns` from first_key on.
  struct Row {
    int32_t query, first_key;
    float distance;  // from the query's place to first_key
  };
  __device__ Row row(int32_t query, int32_t first_key) const {
    return {min(query, sequence_.len_q - 1), first_key,
            static_cast<float>(query + sequence_.len_kv - sequence_.len_q - first_key)};
  }

  // True if scores made of products up to `largest` in size are far from the softcap.
  __device__ bool is_small(float largest) const { return largest * p_.softcap_scale < portable::kSmallTanh; }

  // The score of a row's query and the key `column` behind its first, out of s = q . k with the sign of scale. Both may
  // lie past the lengths.
  template <bool IsSmall>
  __device__ float value(float s, const Row& row, int32_t column) const {
    if constexpr (C.softcap) {
      s = softcap<IsSmall>(s);
    } else {
      s *= q_scale();
    }
    const int32_t key = min(row.first_key + column, sequence_.len_kv - 1);
    if constexpr (C.bias) {
      const int64_t at = bias_ + row.query * p_.bias.q_stride + (sequence_.slot_kv + key) * p_.bias.kv_stride;
      constexpr Element kBias = C.bias_is_f32 ? Element::f32 : C.element;
      s += to_float<kBias>(p_.bias.data, at);
    }
    if constexpr (C.alibi) s = __fmaf_rn(-slope_, fabsf(row.distance - static_cast<float>(column)), s);
    if constexpr (C.score) s = user::score(s, batch_idx_, head_idx_, row.query, key, Arrays(p_));
    return s;
  }

 private:
  // c tanh(scale s / c): where its argument is small an odd polynomial.
  template <bool IsSmall>
  __device__ float softcap(float s) const {
    const float y = s * p_.softcap_scale;
    if constexpr (IsSmall) {
      const float square = y * y;
      float sum = __fmaf_rn(p_.softcap_series[3], square, p_.softcap_series[2]);
      sum = __fmaf_rn(sum, square, p_.softcap_series[1]);
      sum = __fmaf_rn(sum, square, p_.softcap_series[0]);
      return y * sum;
    } else {
      return p_.softcap * tanhf(y);
    }
  }

  // Its sign is in q already. Zero would make 0 * -inf of a hidden key: the least normal number gives equal scores too.
  __device__ float q_scale() const { return fmaxf(fabsf(p_.scale), 1.17549435e-38f); }

  const portable::ForwardParams& p_;
  const Sequence& sequence_;
  int32_t batch_idx_, head_idx_;
  float slope_ = 0;
  int64_t bias_ = 0;
};

}  // namespace tessella::device
