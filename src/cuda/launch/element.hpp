// Element types as kernels know them.
#pragma once

#include "core/dtype.hpp"
#include "portable/score_config.hpp"

namespace tessella::cuda {

// For f32, bf16 and f16.
constexpr portable::Element element(core::DType dtype) {
  using portable::Element;
  return dtype == core::DType::bf16 ? Element::bf16 : dtype == core::DType::f16 ? Element::f16 : Element::f32;
}

}  // namespace tessella::cuda
