// Of the quantised caches of append: the largest number that they hold, and where a scale lies.
#pragma once

#include <cstdint>

#include "tessella/tessella.h"

namespace tessella::tests {

inline double largest(int32_t dtype) { return dtype == TESSELLA_F8E4M3FN ? 448 : dtype == TESSELLA_I8 ? 127 : 7; }

// Element of a scale: (1), (heads), or (slots, rows or 1, heads).
inline int64_t scale_at_of(const tessella_tensor& t, int64_t slot, int64_t row, int64_t head) {
  int64_t at = 0;
  const int64_t indices[3] = {slot, row, head};
  for (int axis = 0; axis < t.ndim; ++axis) {
    if (t.shape[axis] != 1) at += indices[3 - t.ndim + axis] * t.strides[axis];
  }
  return at;
}

}  // namespace tessella::tests
