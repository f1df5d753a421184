// What the kernels of linear share: what becomes of the sums x w^T, and where results go.
#pragma once

#include "portable/element.hpp"

namespace tessella::portable {

// Strides in elements. Null data: absent.
struct LinearOut {
  void* out;             // (rows, out_features)
  const void* residual;  // the same, of the type of out; may be out itself
  const void* bias;      // a number for each row of w
  const float* w_scale;  // likewise
  int64_t out_stride, residual_stride, w_scale_stride;
  int32_t rows, out_features;
  // The type of x, or f32. Kernels read them at run time, as it costs nothing beside the sums.
  Element out_element, bias_element;
  int32_t has_pairs;  // 1 if elements of out and residual begin words at even columns: they have 16 bits, then
};

}  // namespace tessella::portable
