// The caller's modifications: of scores by ALiBi, of the mask by a causal one. Arrays: slopes by head, and the
// sequences' lengths of q and of k, beyond which score_mod is not to be asked.
#pragma once

#include "cuda/device/score/arrays.cuh"

namespace tessella::device::user {

inline float score_mod(float score, int b, int h, int q, int k, float q_minus_k, const Arrays& arrays) {
  const int32_t len_q = arrays.i32(1)[b], len_kv = arrays.i32(2)[b];
  const bool is_within = q >= 0 && q < len_q && k >= 0 && k < len_kv;
  if (!is_within || static_cast<float>(q - k) != q_minus_k) return NAN;
  return score - arrays.f32(0)[h] * fabsf(q_minus_k + static_cast<float>(len_kv - len_q));
}
inline float score_mod_gradient(float, float d_score, int b, int, int q, int k, float, const Arrays& arrays) {
  const bool is_within = q >= 0 && q < arrays.i32(1)[b] && k >= 0 && k < arrays.i32(2)[b];
  return is_within ? d_score : NAN;
}
inline bool mask_mod(int, int, int q, int k, const Arrays&) { return k <= q; }

}  // namespace tessella::device::user
