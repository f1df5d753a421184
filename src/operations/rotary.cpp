#include "operations/rotary.hpp"

#include "core/error.hpp"
#include "core/message.hpp"

namespace tessella::core {

Rotary read_rotary(TensorReader& reader, const tessella_tensor& cos, const tessella_tensor& sin, DType dtype,
                   const char* rows) {
  const char* function = reader.function();
  const auto angles = [&](const char* name, const tessella_tensor& tensor, Operand& operand) {
    if (tensor.ndim != 2) {
      invalid(message(function, ": ", name, " has ", tensor.ndim, " axes, expected (positions, rotary_dim / 2)"));
    }
    const TensorAxes axes = reader.attention(name, &tensor, false, operand);
    if (operand.dtype != DType::f32 && operand.dtype != dtype) {
      invalid(message(function, ": ", name, ".dtype is ", core::name(operand.dtype), ", expected f32",
                      dtype == DType::f32 ? "" : message(" or ", core::name(dtype), " = ", rows, ".dtype")));
    }
    return axes;
  };
  Rotary rotary;
  const TensorAxes of_cos = angles("rotary_cos", cos, rotary.cos);
  const TensorAxes of_sin = angles("rotary_sin", sin, rotary.sin);
  if (of_sin.rows != of_cos.rows || of_sin.head_dim != of_cos.head_dim || rotary.sin.dtype != rotary.cos.dtype) {
    invalid(message(function, ": rotary_sin has shape (", of_sin.rows, ", ", of_sin.head_dim, ") and dtype ",
                    name(rotary.sin.dtype), ", expected (", of_cos.rows, ", ", of_cos.head_dim, ") and ",
                    name(rotary.cos.dtype), ", those of rotary_cos"));
  }
  if (of_cos.rows < 1 || of_cos.head_dim < 1) {
    invalid(message(function, ": rotary_cos has shape (", of_cos.rows, ", ", of_cos.head_dim,
                    "), expected at least one position and one angle"));
  }
  rotary.positions = of_cos.rows;
  rotary.dim = 2 * of_cos.head_dim;
  return rotary;
}

}  // namespace tessella::core
