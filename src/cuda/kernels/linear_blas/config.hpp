// linear_blas's configuration, and how a call is cut, by shape alone.
#pragma once

#include <cstdint>

#include "cuda/compile/program.hpp"
#include "cuda/kernels/linear_blas/params.cuh"
#include "operations/linear/shape.hpp"

namespace tessella::cuda {

portable::LinearBlasConfig linear_blas_config(const core::LinearShape& shape);
Program linear_blas_program(const portable::LinearBlasConfig& config);

// Whether out is what cuBLAS writes: nothing becomes of the sums.
bool is_plain_product(const core::LinearShape& shape);

// Rows of x whose sums are in memory at a time; of a plain product all.
int64_t linear_blas_band(const core::LinearShape& shape);

// Of these sums, which come first in the scratch.
int64_t linear_blas_sum_bytes(const core::LinearShape& shape);

}  // namespace tessella::cuda
