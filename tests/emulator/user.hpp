// The caller's texts, where there are none.
#pragma once

#include "cuda/device/arrays.hpp"

namespace tessella::device::user {

inline float score(float score, int, int, int, int, const Arrays&) { return score; }
inline bool keep(int, int, int, int, const Arrays&) { return true; }

}  // namespace tessella::device::user
