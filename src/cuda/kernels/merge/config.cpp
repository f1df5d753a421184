#include "cuda/kernels/merge/config.hpp"

#include <algorithm>

#include "core/element.hpp"
#include "cuda/compile/expression.hpp"

namespace tessella::cuda {

using portable::Element;
using portable::MergeConfig;

MergeConfig merge_config(const core::MergeShape& shape, bool continues, bool is_last) {
  MergeConfig c{.element = core::element(shape.dtype()),
                .out = is_last ? core::element(shape.out.dtype) : Element::f32,
                .vectors = true,
                .continues = continues};
  // A piece of out has 8, 16 or 32 bytes. Those of scratch are aligned to 16 bytes, because head_dim is a multiple of a
  // piece.
  const int32_t out_bytes = std::min(portable::piece(c) * size_bytes(core::element(shape.out.dtype)), 16);
  c.vectors =
      shape.states.alignment >= 16 && shape.out.alignment >= out_bytes && shape.head_dim % portable::piece(c) == 0;
  return c;
}

Program merge_program(const MergeConfig& config) {
  return {.header = "cuda/kernels/merge/merge.cuh", .expression = expression("merge", config)};
}

}  // namespace tessella::cuda
