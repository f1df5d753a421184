// The arguments of linear.
#pragma once

#include <cstdint>

#include "core/access.hpp"
#include "core/arguments.hpp"
#include "core/operand.hpp"
#include "operations/linear/shape.hpp"

namespace tessella::core {

// Matrices and vectors are operands of one batch and one head: (1, rows, 1, columns).
struct LinearArguments : LinearShape {
  Operand x;             // (rows, in_features)
  Operand w;             // (weight_rows(), in_features); swiglu: first the rows of a, then those of b
  Table<float> w_scale;  // (weight_rows()): a row of w is its scale times what is stored
  Operand bias;          // (1, weight_rows()), f32 or the dtype of x; without data there is none
  Operand residual;      // (rows, out_features), the dtype of out; without dtype there is none
  Operand out;           // (rows, out_features)
  const int32_t* cancel = nullptr;

  // Fills the members of the call's shape that follow from its operands.
  void derive_shape();

  // All that the arguments point to (core/call_memory.hpp); what is absent may be left out.
  template <typename A, typename F>
  static void memory(A& a, F&& f) {
    const auto matrix = [&](const char* name, auto& t, Access access, int64_t rows, int64_t columns) {
      if (t.dtype != DType::none) f(FieldName{name}, t, access, int64_t{1}, rows, int64_t{1}, columns);
    };
    matrix("x", a.x, Access::read, a.rows, a.in_features);
    matrix("w", a.w, Access::read, a.weight_rows(), a.in_features);
    matrix("bias", a.bias, Access::read, 1, a.weight_rows());
    matrix("residual", a.residual, Access::read, a.rows, a.out_features);
    matrix("out", a.out, Access::written, a.rows, a.out_features);
    if (a.w_scale) f(FieldName{"w_scale"}, a.w_scale, Access::read, int64_t{1}, a.weight_rows());
    f(FieldName{"cancel"}, Bytes::of(a.cancel), Access::read);
  }
};

inline const LinearArguments& linear(const Arguments& arguments) { return arguments.as<LinearArguments>(); }

}  // namespace tessella::core
