// Rows that are rotated on their way: elements of any float dtype, and the angles of a position.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/dtype.hpp"
#include "portable/float16.hpp"
#include "portable/rotary.hpp"

namespace tessella::cpu {

// Calls fn with a null pointer to the type of the dtype's elements.
template <typename Fn>
void with_element(core::DType dtype, Fn&& fn) {
  switch (dtype) {
    case core::DType::f64: return fn(static_cast<const double*>(nullptr));
    case core::DType::f32: return fn(static_cast<const float*>(nullptr));
    case core::DType::bf16: return fn(static_cast<const portable::BFloat16*>(nullptr));
    default: return fn(static_cast<const portable::Float16*>(nullptr));
  }
}

template <typename T>
using RealOf = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <typename T>
RealOf<T> load(T value) {
  if constexpr (std::is_same_v<T, double>) {
    return value;
  } else {
    return portable::to_float(value);
  }
}
template <typename T>
T rounded(RealOf<T> value) {
  if constexpr (std::is_same_v<T, portable::BFloat16>) {
    return portable::to_bfloat16(value);
  } else if constexpr (std::is_same_v<T, portable::Float16>) {
    return portable::to_float16(value);
  } else {
    return value;
  }
}

// cos, sin: of count angles.
template <typename Real>
void load_angles(core::DType dtype, const std::byte* cos_row, const std::byte* sin_row, int64_t count, Real* cos,
                 Real* sin) {
  with_element(dtype, [&]<typename Angle>(const Angle*) {
    if constexpr (!std::is_same_v<Angle, double> || std::is_same_v<Real, double>) {
      for (int64_t j = 0; j < count; ++j) {
        cos[j] = load(reinterpret_cast<const Angle*>(cos_row)[j]);
        sin[j] = load(reinterpret_cast<const Angle*>(sin_row)[j]);
      }
    }
  });
}

// into may be from. cos, sin: of the rotary_dim / 2 angles.
template <typename T, typename Into>
void rotate_row(const T* from, Into* into, int64_t rotary_dim, bool is_interleaved, const RealOf<T>* cos,
                const RealOf<T>* sin) {
  const auto angles = [&](auto is_of_neighbours) {
    for (int64_t j = 0; j < rotary_dim / 2; ++j) {
      const int64_t first = portable::first_column(j, is_of_neighbours);
      const int64_t second = portable::second_column(j, rotary_dim, is_of_neighbours);
      const auto turned = portable::rotate(load(from[first]), load(from[second]), cos[j], sin[j]);
      into[first] = rounded<Into>(turned.first);
      into[second] = rounded<Into>(turned.second);
    }
  };
  if (is_interleaved) {
    angles(std::true_type());
  } else {
    angles(std::false_type());
  }
}

}  // namespace tessella::cpu
