// linear_blas: what linear does with sums x w^T that another library has left in memory. For Ampere and later.
//
// A block has the elements of out that follow each other, whichever rows they are of.
#pragma once

#include "cuda/device/linear/epilogue.cuh"
#include "cuda/kernels/linear_blas/params.cuh"

namespace tessella::device {

using portable::LinearBlasConfig;
using portable::LinearBlasParams;

template <LinearBlasConfig C>
__global__ void __launch_bounds__(portable::kLinearBlasThreads)
    linear_blas(const __grid_constant__ LinearBlasParams p) {
  constexpr int kElements = portable::kLinearBlasElements;
  constexpr int32_t kThreads = portable::kLinearBlasThreads;
  const int64_t first = int64_t{blockIdx.x} * (kThreads * kElements) + threadIdx.x;
  const int64_t count = int64_t{p.out.rows} * p.out.out_features;
  int32_t rows[kElements], columns[kElements];
  float sums[kElements], ups[kElements];
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    const int64_t idx = first + i * kThreads;
    if (idx >= count) break;
    rows[i] = p.out_features.quotient(static_cast<int32_t>(idx));
    columns[i] = static_cast<int32_t>(idx) - rows[i] * p.out.out_features;
    // With SwiGLU a row of sums is twice as long.
    const float* sum = p.sums + idx + (p.is_swiglu ? int64_t{rows[i]} * p.out.out_features : 0);
    sums[i] = *sum;
    ups[i] = p.is_swiglu ? sum[p.out.out_features] : 0;
  }
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    if (first + i * kThreads >= count) break;
    store_result<C.element>(p.out, p.is_swiglu != 0, rows[i], columns[i], sums[i], ups[i]);
  }
}

}  // namespace tessella::device
