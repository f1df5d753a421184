// Device code of the toy recipe (toy_recipe.hpp): out = 0, then out += the row of v. A block a row of out.
#pragma once

#include "portable/forward_params.hpp"

namespace tessella::toy {

__device__ __forceinline__ float* row_of(const portable::OperandParams& t, int64_t row) {
  return static_cast<float*>(t.data) + blockIdx.z * t.batch_stride + row * t.row_stride + blockIdx.y * t.head_stride;
}

template <int32_t Threads>
__global__ void clear(const __grid_constant__ portable::ForwardParams p) {
  float* out = row_of(p.output.out, blockIdx.x);
  for (int32_t column = static_cast<int32_t>(threadIdx.x); column < p.inputs.head_dim_v; column += Threads)
    out[column] = 0;
}

template <int32_t Threads>
__global__ void add(const __grid_constant__ portable::ForwardParams p) {
#ifdef __CUDACC__
  asm volatile("griddepcontrol.wait;" ::: "memory");  // until clear has ended
#endif
  float* out = row_of(p.output.out, blockIdx.x);
  const float* v = row_of(p.inputs.v, 0);
  for (int32_t column = static_cast<int32_t>(threadIdx.x); column < p.inputs.head_dim_v; column += Threads) {
    out[column] += v[column];
  }
}

}  // namespace tessella::toy
