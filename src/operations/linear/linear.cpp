#include "operations/linear/linear.hpp"

#include <algorithm>
#include <string>

#include "core/error.hpp"
#include "core/message.hpp"
#include "core/operation_of.hpp"

namespace tessella::core {

const OperationType& LinearShape::type() {
  static constexpr OperationOf<Linear> kType;
  return kType;
}

std::string Linear::ineligible_dtypes(const Kernel& kernel, const LinearShape& shape) {
  if (!takes(kernel.kv_dtypes, shape.w_shape.dtype, shape.dtype())) {
    return message("does not compute w.dtype ", name(shape.w_shape.dtype), " beside x.dtype ", name(shape.dtype()));
  }
  if (!takes(kernel.out_dtypes, shape.out_shape.dtype, shape.dtype())) {
    return message("does not write out.dtype ", name(shape.out_shape.dtype), " beside x.dtype ", name(shape.dtype()));
  }
  return "";
}

std::string Linear::ineligible(const Kernel&, const LinearShape&) { return ""; }

void LinearArguments::derive_shape() {
  const auto shape_of = [&](const Operand& t) {
    const bool has_alignment = device.type != DeviceType::cpu && t.dtype != DType::none;
    return OperandShape{t.dtype, has_alignment ? alignment(t) : 1};
  };
  x_shape = shape_of(x);
  w_shape = shape_of(w);
  out_shape = shape_of(out);
  residual_shape = shape_of(residual);
  bias_dtype = bias.dtype;
}

LinearShape Linear::bounds(const LinearShape& shape, const Options& options) {
  LinearShape bounds = shape;
  bounds.rows = std::max(shape.rows, options.max_rows);
  return bounds;
}

void Linear::validate_checkable(const LinearArguments& a) {
  if (a.residual.data == nullptr || a.residual.data != a.out.data) return;
  invalid("check: residual is out, expected memory of its own: the call has written over what it read");
}

}  // namespace tessella::core
