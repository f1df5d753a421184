// Elements of any dtype as the real type of a computation, and back with one rounding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/dtype.hpp"
#include "portable/float8.hpp"
#include "portable/int4.hpp"

namespace tessella::reference {

namespace detail {
// Elements may be unaligned: views come from anywhere.
template <typename T>
T read(const std::byte* data, int64_t idx) {
  T value;
  std::memcpy(&value, data + idx * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}
template <typename T>
void write(std::byte* data, int64_t idx, T value) {
  std::memcpy(data + idx * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}
}  // namespace detail

template <typename Real>
Real load(const std::byte* data, core::DType dtype, int64_t idx) {
  switch (dtype) {
    case core::DType::f64: return static_cast<Real>(detail::read<double>(data, idx));
    case core::DType::f32: return detail::read<float>(data, idx);
    case core::DType::bf16: return portable::to_float(detail::read<portable::BFloat16>(data, idx));
    case core::DType::f16: return portable::to_float(detail::read<portable::Float16>(data, idx));
    case core::DType::f8e4m3fn: return portable::to_float(detail::read<portable::Float8E4M3>(data, idx));
    case core::DType::f8e5m2: return portable::to_float(detail::read<portable::Float8E5M2>(data, idx));
    default: return 0;
  }
}

// The dtype is read once, so that the loops over elements are plain.
template <typename Real>
void load_row(const std::byte* data, core::DType dtype, int64_t count, Real* row) {
  switch (dtype) {
    case core::DType::f64:
      for (int64_t c = 0; c < count; ++c) row[c] = static_cast<Real>(detail::read<double>(data, c));
      break;
    case core::DType::f32:
      for (int64_t c = 0; c < count; ++c) row[c] = detail::read<float>(data, c);
      break;
    case core::DType::bf16:
      for (int64_t c = 0; c < count; ++c) row[c] = portable::to_float(detail::read<portable::BFloat16>(data, c));
      break;
    case core::DType::f16:
      for (int64_t c = 0; c < count; ++c) row[c] = portable::to_float(detail::read<portable::Float16>(data, c));
      break;
    case core::DType::f8e4m3fn:
      for (int64_t c = 0; c < count; ++c) row[c] = portable::to_float(detail::read<portable::Float8E4M3>(data, c));
      break;
    case core::DType::f8e5m2:
      for (int64_t c = 0; c < count; ++c) row[c] = portable::to_float(detail::read<portable::Float8E5M2>(data, c));
      break;
    case core::DType::i8:
      for (int64_t c = 0; c < count; ++c) row[c] = detail::read<int8_t>(data, c);
      break;
    case core::DType::i4:
      for (int64_t c = 0; c < count; ++c) {
        row[c] = static_cast<Real>(portable::int4_at(reinterpret_cast<const uint8_t*>(data), c));
      }
      break;
    default: break;
  }
}

// A double that goes to 16 or 8 bits is rounded to float on the way; the second rounding moves it by 2^-13 of a unit.
template <typename Real>
void store_row(std::byte* data, core::DType dtype, int64_t count, const Real* row) {
  for (int64_t c = 0; c < count; ++c) {
    switch (dtype) {
      case core::DType::f64: detail::write<double>(data, c, row[c]); break;
      case core::DType::f32: detail::write(data, c, static_cast<float>(row[c])); break;
      case core::DType::bf16: detail::write(data, c, portable::to_bfloat16(static_cast<float>(row[c]))); break;
      case core::DType::f16: detail::write(data, c, portable::to_float16(static_cast<float>(row[c]))); break;
      case core::DType::f8e4m3fn: detail::write(data, c, portable::to_float8(static_cast<float>(row[c]))); break;
      case core::DType::f8e5m2: detail::write(data, c, portable::to_e5m2(static_cast<float>(row[c]))); break;
      default: break;
    }
  }
}

template <typename Real>
Real round_to(core::DType dtype, Real value) {
  switch (dtype) {
    case core::DType::bf16: return portable::to_float(portable::to_bfloat16(static_cast<float>(value)));
    case core::DType::f16: return portable::to_float(portable::to_float16(static_cast<float>(value)));
    case core::DType::f8e4m3fn: return portable::to_float(portable::to_float8(static_cast<float>(value)));
    case core::DType::f8e5m2: return portable::to_float(portable::to_e5m2(static_cast<float>(value)));
    case core::DType::f32: return static_cast<float>(value);
    default: return value;
  }
}

// Unit roundoff: rounding to the dtype changes a value by at most this fraction of it.
constexpr double unit_roundoff(core::DType dtype) {
  switch (dtype) {
    case core::DType::f64: return 0x1p-53;
    case core::DType::f32: return 0x1p-24;
    case core::DType::bf16: return 0x1p-9;
    case core::DType::f16: return 0x1p-12;
    case core::DType::f8e4m3fn: return 0x1p-4;
    case core::DType::f8e5m2: return 0x1p-3;
    default: return 0;
  }
}

// The absolute error of the smallest values. fp32 arithmetic may flush values below its normal range, 2^-126, and a sum
// over keys, values and dropout's factor accumulates such errors. For f16 and fp8 it is half the spacing of subnormals.
constexpr double underflow_unit(core::DType dtype) {
  switch (dtype) {
    case core::DType::f64: return 0x1p-1000;
    case core::DType::f16: return 0x1p-25;
    case core::DType::f8e4m3fn: return 0x1p-10;
    case core::DType::f8e5m2: return 0x1p-17;
    default: return 0x1p-100;
  }
}

}  // namespace tessella::reference
