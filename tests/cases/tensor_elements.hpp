// Elements of a case's tensors, of any dtype.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

#include "cases/tensor_places.hpp"
#include "portable/float16.hpp"
#include "portable/float8.hpp"
#include "portable/int4.hpp"
#include "tessella/tessella.h"

namespace tessella::tests {

inline int32_t dtype_of(const std::string& name) {
  if (name == "f64") return TESSELLA_F64;
  if (name == "f32") return TESSELLA_F32;
  if (name == "bf16") return TESSELLA_BF16;
  if (name == "f16") return TESSELLA_F16;
  if (name == "f8e4m3fn") return TESSELLA_F8E4M3FN;
  if (name == "f8e5m2") return TESSELLA_F8E5M2;
  if (name == "i8") return TESSELLA_I8;
  if (name == "i4") return TESSELLA_I4;
  throw std::invalid_argument("no dtype of a case: " + name);
}

template <typename T>
void put(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof(T));
}

// NaN is the least there is.
inline double rounded(double value, double least, double most) {
  return std::isnan(value) ? least : std::clamp(std::nearbyint(value), least, most);
}

inline void set(const tessella_tensor& tensor, int64_t element, double value) {
  if (tensor.dtype == TESSELLA_I4) {
    const auto whole = static_cast<int32_t>(rounded(value, -8, 7));
    return portable::set_int4(static_cast<uint8_t*>(tensor.data), element, whole);
  }
  std::byte* at = static_cast<std::byte*>(tensor.data) + element * size_of(tensor.dtype);
  switch (tensor.dtype) {
    case TESSELLA_F64: return put(at, value);
    case TESSELLA_F32: return put(at, static_cast<float>(value));
    case TESSELLA_BF16: return put(at, portable::to_bfloat16(static_cast<float>(value)));
    case TESSELLA_F16: return put(at, portable::to_float16(static_cast<float>(value)));
    case TESSELLA_F8E4M3FN: return put(at, portable::to_float8(static_cast<float>(value)));
    case TESSELLA_F8E5M2: return put(at, portable::to_e5m2(static_cast<float>(value)));
    case TESSELLA_I8: return put(at, static_cast<int8_t>(rounded(value, -128, 127)));
    case TESSELLA_BOOL: return put(at, static_cast<uint8_t>(value != 0));
    default: return put(at, static_cast<int32_t>(value));
  }
}

inline double get(const tessella_tensor& tensor, int64_t element) {
  const auto read = [&]<typename T>(T value) {
    std::memcpy(&value, static_cast<const std::byte*>(tensor.data) + element * size_of(tensor.dtype), sizeof(T));
    return value;
  };
  switch (tensor.dtype) {
    case TESSELLA_F64: return read(double{});
    case TESSELLA_F32: return static_cast<double>(read(float{}));
    case TESSELLA_BF16: return static_cast<double>(portable::to_float(read(portable::BFloat16{})));
    case TESSELLA_F16: return static_cast<double>(portable::to_float(read(portable::Float16{})));
    default: throw std::invalid_argument("no floating point");
  }
}

// Calls fn with the offset of every element, in order of the axes.
template <typename Fn>
void for_each_element(const tessella_tensor& t, Fn&& fn) {
  int64_t idx[8] = {};
  for (int axis = 0; axis < t.ndim; ++axis) {
    if (t.shape[axis] == 0) return;
  }
  for (;;) {
    int64_t at = 0;
    for (int axis = 0; axis < t.ndim; ++axis) at += idx[axis] * t.strides[axis];
    fn(at);
    int axis = t.ndim - 1;
    while (axis >= 0 && ++idx[axis] == t.shape[axis]) idx[axis--] = 0;
    if (axis < 0) return;
  }
}

}  // namespace tessella::tests
