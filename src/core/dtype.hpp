// Element types; the values are tessella_dtype of tessella.h.
#pragma once

#include <cstdint>

namespace tessella::core {

enum class DType : int32_t { none = 0, f64, f32, bf16, f16, boolean, i32, i64, u8, i8, i4, f8e4m3fn, f8e5m2 };
inline constexpr DType kLastDType = DType::f8e5m2;

constexpr int64_t size_bits(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64: return 64;
    case DType::f32:
    case DType::i32: return 32;
    case DType::bf16:
    case DType::f16: return 16;
    case DType::boolean:
    case DType::u8:
    case DType::i8:
    case DType::f8e4m3fn:
    case DType::f8e5m2: return 8;
    case DType::i4: return 4;
    case DType::none: break;
  }
  return 0;
}

// For dtypes of whole bytes; not for i4, which has two elements a byte.
constexpr int64_t size_bytes(DType dtype) { return size_bits(dtype) / 8; }
constexpr int64_t bytes_of(DType dtype, int64_t elements) {
  return dtype == DType::i4 ? (elements + 1) / 2 : elements * size_bytes(dtype);
}

constexpr const char* name(DType dtype) {
  switch (dtype) {
    case DType::f64: return "f64";
    case DType::f32: return "f32";
    case DType::bf16: return "bf16";
    case DType::f16: return "f16";
    case DType::boolean: return "bool";
    case DType::i32: return "i32";
    case DType::i64: return "i64";
    case DType::u8: return "u8";
    case DType::i8: return "i8";
    case DType::i4: return "i4";
    case DType::f8e4m3fn: return "f8e4m3fn";
    case DType::f8e5m2: return "f8e5m2";
    case DType::none: break;
  }
  return "none";
}

constexpr bool is_float8(DType dtype) { return dtype == DType::f8e4m3fn || dtype == DType::f8e5m2; }
// Dtypes of 8 or 4 bits, which need a scale for their range.
constexpr bool is_quantized(DType dtype) { return is_float8(dtype) || dtype == DType::i8 || dtype == DType::i4; }
constexpr bool is_float(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

}  // namespace tessella::core
