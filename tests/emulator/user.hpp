// The caller's texts: the keep text is that of a causal mask.
#pragma once

#include "cuda/device/arrays.hpp"

namespace tessella::device::user {

inline float score(float score, int, int, int, int, const Arrays&) { return score; }
inline bool keep(int, int, int q, int k, const Arrays&) { return k <= q; }

}  // namespace tessella::device::user
