// How much memory a tensor spans.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tessella/tensor.hpp"

namespace tessella::cli {

// Bytes from the first element to the end of the last.
inline size_t extent_bytes(const tessella_tensor& t) {
  int64_t last = 0;
  for (int axis = 0; axis < t.ndim; ++axis) {
    if (t.shape[axis] == 0) return 0;
    last += (t.shape[axis] - 1) * t.strides[axis];
  }
  return static_cast<size_t>((last + 1) * size_bits(static_cast<DType>(t.dtype)) + 7) / 8;
}

}  // namespace tessella::cli
