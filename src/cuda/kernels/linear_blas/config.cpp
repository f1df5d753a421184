#include "cuda/kernels/linear_blas/config.hpp"

#include <algorithm>

#include "core/element.hpp"
#include "cuda/compile/expression.hpp"

namespace tessella::cuda {
namespace {

// Hundreds of rows of the widest layers of common models, so that reading w again for each band costs little.
constexpr int64_t kMostSumBytes = int64_t{128} << 20;
constexpr int64_t kWholeRows = 128;  // cuBLAS's tiles divide them
constexpr int64_t kSumBytes = sizeof(float);

}  // namespace

portable::LinearBlasConfig linear_blas_config(const core::LinearShape& shape) {
  return {.element = core::element(shape.dtype())};
}

Program linear_blas_program(const portable::LinearBlasConfig& config) {
  return {.header = "cuda/kernels/linear_blas/linear_blas.cuh", .expression = expression("linear_blas", config)};
}

bool is_plain_product(const core::LinearShape& shape) {
  return shape.bias_dtype == core::DType::none && shape.residual_shape.dtype == core::DType::none &&
         shape.activation == core::Activation::none;
}

int64_t linear_blas_band(const core::LinearShape& shape) {
  if (is_plain_product(shape)) return shape.rows;
  const int64_t most = std::max<int64_t>(1, kMostSumBytes / (shape.weight_rows() * kSumBytes));
  return std::min(shape.rows, most < kWholeRows ? most : most / kWholeRows * kWholeRows);
}

int64_t linear_blas_sum_bytes(const core::LinearShape& shape) {
  return is_plain_product(shape) ? 0 : linear_blas_band(shape) * shape.weight_rows() * kSumBytes;
}

}  // namespace tessella::cuda
