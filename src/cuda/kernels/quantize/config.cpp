#include "cuda/kernels/quantize/config.hpp"

#include <algorithm>
#include <bit>
#include <string_view>

#include "core/element.hpp"
#include "cuda/compile/expression.hpp"
#include "operations/quantize/quantize_rows.hpp"

namespace tessella::cuda {

using portable::QuantizeConfig;

QuantizeConfig quantize_config(const core::QuantizeShape& shape) {
  const bool is_quantize = shape.operation == core::Operation::quantize;
  const core::OperandShape& rows = is_quantize ? shape.x : shape.out;
  const core::OperandShape& elements = is_quantize ? shape.out : shape.x;
  const auto columns = static_cast<uint64_t>(std::max<int64_t>(shape.head_dim, 16));
  QuantizeConfig c{.element = core::element(rows.dtype),
                   .quantized = core::element(elements.dtype),
                   .columns = static_cast<int32_t>(std::bit_ceil(columns)),
                   .vectors = true,
                   .rotates = shape.rotary_dim > 0,
                   .interleaved = shape.rotary_interleaved,
                   .angles_are_f32 = shape.rotary_dim == 0 || shape.rotary == core::DType::f32,
                   .has_mean = shape.mean_heads > 0 && !shape.has_shift,
                   .hadamard = shape.hadamard,
                   .shifts = shape.has_shift,
                   .own_scales = core::has_small_entries(shape)};
  // A lane has all of its columns or none, and columns that are rotated together begin at multiples of a piece.
  const int64_t together = shape.rotary_interleaved ? shape.rotary_dim : shape.rotary_dim / 2;
  c.vectors = rows.alignment >= 16 && elements.alignment >= (shape.is_transposed ? 4 : 16) &&
              shape.head_dim % portable::lane_columns(c) == 0 && together % portable::row_piece(c) == 0;
  return c;
}

Program quantize_program(const char* kernel, const QuantizeConfig& config) {
  const bool is_dequantize = std::string_view(kernel).starts_with("dequantize");
  return {.header = is_dequantize ? "cuda/kernels/quantize/dequantize.cuh" : "cuda/kernels/quantize/quantize.cuh",
          .expression = expression(kernel, config)};
}

}  // namespace tessella::cuda
