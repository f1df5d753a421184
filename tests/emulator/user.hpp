// The caller's texts: the score text is ALiBi, the keep text a causal mask.
#pragma once

#include "cuda/device/arrays.hpp"

namespace tessella::device::user {

inline float score(float score, int, int h, int q, int k, float q_minus_k, const Arrays& arrays) {
  if (static_cast<float>(q - k) != q_minus_k) return NAN;
  return score - arrays.f32(0)[h] * fabsf(q_minus_k);
}
inline bool keep(int, int, int q, int k, const Arrays&) { return k <= q; }

}  // namespace tessella::device::user
