// Element types; the values are tessella_dtype of tessella.h.
#pragma once

#include <cstdint>

namespace tessella::core {

enum class DType : int32_t { none = 0, f64, f32, bf16, f16, boolean, i32, i64 };

constexpr int64_t size_bytes(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64: return 8;
    case DType::f32:
    case DType::i32: return 4;
    case DType::bf16:
    case DType::f16: return 2;
    case DType::boolean: return 1;
    case DType::none: break;
  }
  return 0;
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
    case DType::none: break;
  }
  return "none";
}

constexpr bool is_float(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

}  // namespace tessella::core
