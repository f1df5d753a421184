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

// Where kernels that load rows by their threads find them.
struct LinearOperands {
  const void* x;  // (rows, in_features)
  const void* w;  // (out_features, in_features); with SwiGLU first the rows of a, then those of b
  int64_t x_stride, w_stride;
  int32_t in_features;
  int32_t is_swiglu;
  int32_t weights_ready;  // 1 if w may be read before the kernel before has ended
};

}  // namespace tessella::portable
