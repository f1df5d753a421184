// Where the elements of a case's tensors lie.
#pragma once

#include <cstdint>

#include "tessella/tessella.h"

namespace tessella::tests {

inline constexpr int kPoison = 0xFF;  // every dtype that has one reads it as NaN

inline int64_t size_of(int32_t dtype) {
  switch (dtype) {
    case TESSELLA_F64:
    case TESSELLA_I64: return 8;
    case TESSELLA_F32:
    case TESSELLA_I32: return 4;
    case TESSELLA_BOOL:
    case TESSELLA_U8:
    case TESSELLA_I8:
    case TESSELLA_F8E4M3FN:
    case TESSELLA_F8E5M2: return 1;
    default: return 2;
  }
}
// Of any dtype; i4 has two elements a byte.
inline int64_t bytes_of(int32_t dtype, int64_t elements) {
  return dtype == TESSELLA_I4 ? (elements + 1) / 2 : elements * size_of(dtype);
}

// Element (b, row, head, 0) of an attention tensor; packed ones have no batch axis.
inline int64_t element(const tessella_tensor& t, int64_t b, int64_t row, int64_t head) {
  return t.ndim == 4 ? b * t.strides[0] + row * t.strides[1] + head * t.strides[2]
                     : row * t.strides[0] + head * t.strides[1];
}

// Element of a scale a token, or block of them, and head; beside packed keys it has no batch axis.
inline int64_t scale_element(const tessella_tensor& t, int64_t b, int64_t row, int64_t head) {
  return (t.ndim == 3 ? b * t.strides[0] : 0) + row * t.strides[t.ndim - 2] + head * t.strides[t.ndim - 1];
}

// Element of an lse tensor.
inline int64_t lse_element(const tessella_tensor& t, int64_t b, int64_t row, int64_t head) {
  return t.ndim == 3 ? b * t.strides[0] + head * t.strides[1] + row * t.strides[2]
                     : head * t.strides[0] + row * t.strides[1];
}

// Elements from the first to one past the last.
inline int64_t extent(const tessella_tensor& t) {
  int64_t last = 0;
  for (int axis = 0; axis < t.ndim; ++axis) {
    if (t.shape[axis] == 0) return 0;
    last += (t.shape[axis] - 1) * t.strides[axis];
  }
  return last + 1;
}

}  // namespace tessella::tests
