// Exponents of 2 that forward_sm90 makes probabilities of: of a score in row r (0 or 1) of the lane, `column` keys
// behind the lane's first.
#pragma once

namespace tessella::device {

struct PlainExponents {
  float scale_log2;
  float offset[2];  // what they are taken against

  __device__ __forceinline__ float operator()(float score, int r, int) const {
    return __fmaf_rn(score, scale_log2, -offset[r]);
  }
};

// ALiBi where all keys of a tile lie on one side of the warp's queries: its penalty is linear in the key, so it joins
// the offset.
struct AlibiExponents {
  float scale_log2;
  float offset[2];  // at the lane's first key
  float step;       // from a key to the next

  __device__ __forceinline__ float operator()(float score, int r, int column) const {
    return __fmaf_rn(score, scale_log2, -__fmaf_rn(step, static_cast<float>(-column), offset[r]));
  }
};

}  // namespace tessella::device
