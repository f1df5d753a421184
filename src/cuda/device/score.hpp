// From q . k to the score that the softmax sees: scale -> softcap -> + bias + ALiBi -> the caller's text.
// The order is that of every backend (docs/numerics.md). Parts that a config leaves out cost nothing.
#pragma once

#include "cuda/device/arrays.hpp"
#include "cuda/device/ptx/math.hpp"
#include "portable/forward_config.hpp"
#include "portable/forward_params.hpp"
#include "cuda/device/sequence.hpp"
#include "cuda/device/softmax.hpp"
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

// c tanh(x / c). For 16-bit inputs: an odd polynomial where |x / c| < kSmallTanh (relative error below 2^-22), else
// 1 - 2 / (1 + e^2y), whose error is below c 2^-22.
inline constexpr float kSmallTanh = 0.5f;
template <Element E>
__device__ __forceinline__ float softcap(float x, float cap, float inverse_cap, bool is_small) {
  if constexpr (E == Element::f32) {
    return cap * tanhf(x * inverse_cap);
  } else if (is_small) {
    const float y = x * inverse_cap, square = y * y;
    float sum = __fmaf_rn(square, 0.0172573031f, -0.0530530907f);
    sum = __fmaf_rn(sum, square, 0.133259892f);
    sum = __fmaf_rn(sum, square, -0.333331484f);
    return __fmaf_rn(x * square, sum, x);
  } else {
    const float power = ptx::exp2(x * (2 * kLog2e * inverse_cap));
    return __fmaf_rn(-2 * cap, ptx::reciprocal(1 + power), cap);
  }
}

template <ForwardConfig C>
class Score {
 public:
  static constexpr bool kIsPlain = !C.softcap && !C.alibi && !C.bias && !C.score;

  __device__ Score(const portable::ForwardParams& p, const Sequence& sequence, int32_t batch_idx, int32_t head_idx)
      : p_(p), sequence_(sequence), batch_idx_(batch_idx), head_idx_(head_idx) {
    if constexpr (C.softcap) inverse_cap_ = 1 / p.softcap;
    if constexpr (C.alibi) {
      slope_ = static_cast<const float*>(
          p.alibi_slopes.data)[batch_idx * p.alibi_slopes.batch_stride + head_idx * p.alibi_slopes.stride];
    }
    if constexpr (C.bias) bias_ = batch_idx * p.bias.batch_stride + head_idx * p.bias.head_stride;
  }

  // From what the softmax sees, q . k where nothing comes between, to natural scores and to exponents of 2.
  __device__ float scale() const { return kIsPlain ? q_scale() : 1.0f; }
  __device__ float scale_log2() const { return scale() * kLog2e; }

  // True if no score up to `largest` in size is near the softcap.
  __device__ bool is_small(float largest) const { return largest * q_scale() * inverse_cap_ < kSmallTanh; }

  // The score of query i and key j out of s = |scale|'s sign on q . k. Both may lie past the lengths.
  __device__ float value(float s, int32_t i, int32_t j, bool is_small) const {
    s *= q_scale();
    if constexpr (C.softcap) s = softcap<C.element>(s, p_.softcap, inverse_cap_, is_small);
    if constexpr (C.bias) {
      const int64_t q = min(i, sequence_.len_q - 1);
      const int64_t kv = sequence_.slot_kv + min(j, sequence_.len_kv - 1);
      const int64_t at = bias_ + q * p_.bias.q_stride + kv * p_.bias.kv_stride;
      s += to_float<C.bias_is_f32 ? Element::f32 : C.element>(p_.bias.data, at);
    }
    if constexpr (C.alibi) {
      const float distance = static_cast<float>(i + sequence_.len_kv - sequence_.len_q - j);
      s = __fmaf_rn(-slope_, fabsf(distance), s);
    }
    // Clamped too: the text may read its arrays at both.
    if constexpr (C.score) {
      s = user::score(s, batch_idx_, head_idx_, min(i, sequence_.len_q - 1), min(j, sequence_.len_kv - 1), Arrays(p_));
    }
    return s;
  }

 private:
  // Its sign is in q already. Zero would make 0 * -inf of a hidden key: the least normal number gives equal scores too.
  __device__ float q_scale() const { return fmaxf(fabsf(p_.scale), 1.17549435e-38f); }

  const portable::ForwardParams& p_;
  const Sequence& sequence_;
  int32_t batch_idx_, head_idx_;
  float inverse_cap_ = 0;
  float slope_ = 0;
  int64_t bias_ = 0;
};

}  // namespace tessella::device
