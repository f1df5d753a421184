// cuda.linear_blas: cuBLAS computes the sums, and one step the rest.
#pragma once

#include "core/kernel.hpp"
#include "cuda/launch/recipe.hpp"

namespace tessella::cuda {

// Its step takes the sums at the begin of the scratch.
Recipe linear_blas_recipe(const core::Shape& bounds, const DeviceInfo& device);

// Memory for cuBLAS behind them.
int64_t cublas_workspace_bytes(const DeviceInfo& device);
inline constexpr int64_t kCublasAlignment = 256;

// The same kernel, whose runs call cuBLAS before their steps.
core::Kernel with_cublas(core::Kernel kernel);

}  // namespace tessella::cuda
