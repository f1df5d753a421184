// The element types of kernels and the dtypes of tessella.h.
#pragma once

#include "core/dtype.hpp"
#include "core/error.hpp"
#include "core/message.hpp"
#include "portable/element.hpp"

namespace tessella::core {

// Error(internal) for dtypes that no kernel with element types computes: ineligible_dtypes() comes first.
inline portable::Element element(DType dtype) {
  using portable::Element;
  switch (dtype) {
    case DType::f32: return Element::f32;
    case DType::bf16: return Element::bf16;
    case DType::f16: return Element::f16;
    case DType::f8e4m3fn: return Element::e4m3;
    case DType::f8e5m2: return Element::e5m2;
    case DType::i8: return Element::i8;
    case DType::i4: return Element::i4;
    case DType::f64:
    case DType::boolean:
    case DType::i32:
    case DType::i64:
    case DType::u8:
    case DType::none: break;
  }
  throw Error(ErrorCode::internal, message("dtype ", name(dtype), " is no element type of a kernel"));
}

}  // namespace tessella::core
