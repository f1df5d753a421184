#include "cuda/kernels/append/config.hpp"

#include "core/element.hpp"
#include "cuda/compile/expression.hpp"

namespace tessella::cuda {

using portable::AppendConfig;

AppendConfig append_config(const core::AppendShape& shape) {
  AppendConfig c{.element = core::element(shape.dtype()),
                 .cache = core::element(shape.cache.dtype),
                 .computes_scales = shape.scale_block != 0,
                 .vectors = true,
                 .rotates = shape.rotary_dim > 0,
                 .interleaved = shape.rotary_interleaved,
                 .angles_are_f32 = shape.rotary_dim == 0 || shape.rotary == core::DType::f32};
  const int64_t piece = portable::piece(c);
  // Columns that are rotated together begin at multiples of a piece, and so do the columns copied after them.
  const int64_t together = shape.rotary_interleaved ? shape.rotary_dim : shape.rotary_dim / 2;
  c.vectors =
      shape.rows.alignment >= 16 && shape.cache.alignment >= portable::cache_piece_bytes(c) && together % piece == 0;
  for (const core::RowsShape& rows : {shape.k_new, shape.v_new, shape.q}) {
    c.vectors = c.vectors && rows.head_dim % piece == 0;
  }
  return c;
}

Program append_program(const AppendConfig& config) {
  return {.header = "cuda/kernels/append/append.cuh", .expression = expression("append", config)};
}

}  // namespace tessella::cuda
