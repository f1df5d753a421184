// The angles by which rows are rotated.
#pragma once

#include <cstdint>

#include "core/operand.hpp"
#include "operations/tensor_reader.hpp"

namespace tessella::core {

struct Rotary {
  Operand cos, sin;       // (1, positions, 1, dim / 2)
  int64_t positions = 0;  // that have an angle
  int64_t dim = 0;        // columns that are rotated
};

// cos and sin: (positions, dim / 2), f32 or `dtype`, which is that of the tensor `rows`.
Rotary read_rotary(TensorReader& reader, const tessella_tensor& cos, const tessella_tensor& sin, DType dtype,
                   const char* rows);

}  // namespace tessella::core
