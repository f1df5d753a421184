#include "cuda/kernels/linear_gemv/config.hpp"

#include <algorithm>
#include <bit>

#include "core/element.hpp"
#include "cuda/compile/expression.hpp"

namespace tessella::cuda {

using portable::LinearGemvConfig;

LinearGemvConfig linear_gemv_config(const core::LinearShape& shape) {
  const auto rows = static_cast<uint64_t>(std::clamp<int64_t>(shape.rows, 1, portable::kMostGemvRows));
  LinearGemvConfig c{.element = core::element(shape.dtype()),
                     .weight = core::element(shape.w_shape.dtype),
                     .rows = static_cast<int32_t>(std::bit_ceil(rows))};
  const int64_t whole = 16 / size_bytes(c.weight);
  c.vectors = shape.x_shape.alignment >= 16 && shape.w_shape.alignment >= 16 && shape.in_features % whole == 0;
  return c;
}

Program linear_gemv_program(const LinearGemvConfig& config) {
  return {.header = "cuda/kernels/linear_gemv/linear_gemv.cuh", .expression = expression("linear_gemv", config)};
}

}  // namespace tessella::cuda
