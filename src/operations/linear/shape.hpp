// The shape of linear.
#pragma once

#include <cstdint>

#include "core/fields.hpp"
#include "core/shape.hpp"

namespace tessella::core {

// What becomes of the sums x w^T + bias.
enum class Activation : int32_t {
  none = 0,
  swiglu = 1,  // silu(a) b of their first half a and their second half b (arXiv 2002.05202)
};
constexpr const char* name(Activation activation) { return activation == Activation::swiglu ? "swiglu" : "none"; }

// The shape of linear: out = activation(x w^T + bias) + residual.
struct LinearShape {
  using Self = LinearShape;
  static const OperationType& type();  // of linear

  Operation operation = Operation::linear;
  Device device;
  OperandShape x_shape;
  OperandShape w_shape;  // of x's dtype, or i8 or f8e4m3fn beside a scale for each of its rows
  OperandShape out_shape;
  OperandShape residual_shape;
  DType bias_dtype = DType::none;
  int64_t rows = 0;          // of x
  int64_t in_features = 0;   // columns of x and of w
  int64_t out_features = 0;  // columns of out
  Activation activation = Activation::none;
  bool weights_ready = false;    // nothing queued before writes w, w_scale or bias
  bool batch_invariant = false;  // a row's bits do not depend on how many rows there are
  int32_t num_threads = 0;
  int32_t num_sms = 0;
  bool operator==(const LinearShape&) const = default;

  DType dtype() const { return x_shape.dtype; }
  int64_t weight_rows() const { return activation == Activation::swiglu ? 2 * out_features : out_features; }

  // f(FieldName, get, Fit) of every member; std::invoke(get, shape) is the member of a shape.
  template <typename F>
  static void fields(F&& f) {
    f(FieldName{"operation"}, &LinearShape::operation, Fit::equal);
    f(FieldName{"device"}, &LinearShape::device, Fit::equal);
    f(FieldName{"rows"}, &LinearShape::rows, Fit::at_most_few);
    f(FieldName{"in_features"}, &LinearShape::in_features, Fit::equal);
    f(FieldName{"out_features"}, &LinearShape::out_features, Fit::equal);
    f(
        FieldName{"x", "dtype"}, [](auto& shape) -> auto& { return shape.x_shape.dtype; }, Fit::equal);
    f(
        FieldName{"x", "alignment"}, [](auto& shape) -> auto& { return shape.x_shape.alignment; }, Fit::at_least);
    f(
        FieldName{"w", "dtype"}, [](auto& shape) -> auto& { return shape.w_shape.dtype; }, Fit::equal);
    f(
        FieldName{"w", "alignment"}, [](auto& shape) -> auto& { return shape.w_shape.alignment; }, Fit::at_least);
    f(
        FieldName{"out", "dtype"}, [](auto& shape) -> auto& { return shape.out_shape.dtype; }, Fit::equal);
    f(
        FieldName{"out", "alignment"}, [](auto& shape) -> auto& { return shape.out_shape.alignment; }, Fit::at_least);
    f(
        FieldName{"residual", "dtype"}, [](auto& shape) -> auto& { return shape.residual_shape.dtype; }, Fit::equal);
    f(
        FieldName{"residual", "alignment"}, [](auto& shape) -> auto& { return shape.residual_shape.alignment; },
        Fit::at_least);
    f(FieldName{"bias", "dtype"}, &LinearShape::bias_dtype, Fit::equal);
    f(FieldName{"activation"}, &LinearShape::activation, Fit::equal);
    f(FieldName{"weights_ready"}, &LinearShape::weights_ready, Fit::equal);
    f(FieldName{"batch_invariant"}, &LinearShape::batch_invariant, Fit::equal);
    f(FieldName{"num_threads"}, &LinearShape::num_threads, Fit::if_given);
    f(FieldName{"num_sms"}, &LinearShape::num_sms, Fit::equal);
  }
};

inline const LinearShape& linear(const Shape& shape) { return shape.as<LinearShape>(); }

}  // namespace tessella::core
