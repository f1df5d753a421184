// linear on at::Tensor: few rows times a matrix of weights. It has no gradient.
//
//   at::Tensor out = tessella::torch::linear(x, w, {.activation = tessella::Activation::swiglu}, {.bias = bias});
#pragma once

#include <algorithm>
#include <string>
#include <tessella/linear.hpp>
#include <tessella/torch/tensor.hpp>
#include <tuple>

namespace tessella::torch {

// Tensors of a call beside x and w, as LinearArgs names and shapes them, with the leading axes of x; an undefined one
// is absent. out is made, of the dtype of x, when absent.
struct LinearTensors {
  // generated: tensors, from src/api/arguments.toml
  at::Tensor w_scale = {};
  at::Tensor bias = {};
  at::Tensor residual = {};
  at::Tensor out = {};
  // end of generated
};

namespace detail {

// The tensor with its axes before the last as one of rows, which lie at one distance.
inline TensorView rows_of(const TensorView& given, const char* name) {
  if (!given.is_present()) return given;
  tessella_tensor view = given.c_tensor();
  const int last = view.ndim - 1;
  const bool is_empty = std::count(view.shape, view.shape + last, 0) != 0;
  int64_t rows = is_empty ? 0 : 1, stride = 0;
  for (int axis = last - 1; axis >= 0 && !is_empty; --axis) {
    if (view.shape[axis] == 1) continue;
    if (rows == 1) stride = view.strides[axis];
    if (view.strides[axis] != rows * stride) {
      fail("linear", ErrorCode::invalid_argument,
           std::string(name) + ".strides[" + std::to_string(axis) + "] is " + std::to_string(view.strides[axis]) +
               ", expected " + std::to_string(rows * stride) +
               ": the rows of the leading axes must lie at one distance from each other, as those of a contiguous "
               "copy do");
    }
    rows *= view.shape[axis];
  }
  view.shape[1] = view.shape[last];
  view.strides[1] = view.strides[last];
  view.shape[0] = rows;
  view.strides[0] = stride;
  view.ndim = 2;
  return TensorView(view);
}

// Leading axes that are others would be other rows.
inline void expect_rows_of(const at::Tensor& x, const at::Tensor& tensor, const char* name) {
  if (!tensor.defined()) return;
  const auto leading = [](const at::Tensor& t) { return t.sizes().slice(0, static_cast<size_t>(t.dim()) - 1); };
  if (tensor.dim() == x.dim() && (x.dim() == 2 || leading(tensor).equals(leading(x)))) return;
  fail("linear", ErrorCode::invalid_argument,
       std::string(name) + " has other leading axes than x, expected (..., out_features) beside x (..., in_features)");
}

}  // namespace detail

// out = f(x w^T + bias) + residual, where f is options.activation (FlashDecoding++, arXiv 2311.01282, section 4).
//   x        (..., in_features), any number of leading axes, f64, f32, bf16 or f16
//   w        (out_features, in_features), with swiglu (2 out_features, in_features): the dtype of x, or i8 or f8e4m3fn
//            beside tensors.w_scale
//   returns  out, (..., out_features)
// Throws Error as tessella::linear.
inline at::Tensor linear(const at::Tensor& x, const at::Tensor& w, const LinearOptions& options = {},
                         LinearTensors tensors = {}) {
  const auto view = [](const at::Tensor& tensor, const char* name) { return detail::view("linear", tensor, name); };
  const TensorView of_x = detail::required("linear", x, "x"), of_w = detail::required("linear", w, "w");
  if (!tensors.out.defined()) {
    auto shape = x.sizes().vec();
    shape.back() = options.activation == Activation::swiglu ? w.size(0) / 2 : w.size(0);
    tensors.out = at::empty(shape, x.options());
  }
  LinearArgs args{.x = detail::rows_of(of_x, "x"), .w = of_w};
  // generated: views, from src/api/arguments.toml
  args.w_scale = view(tensors.w_scale, "w_scale");
  args.bias = view(tensors.bias, "bias");
  args.residual = view(tensors.residual, "residual");
  args.out = view(tensors.out, "out");
  // end of generated
  for (const auto& [name, tensor, member] :
       {std::tuple{"residual", &tensors.residual, &LinearArgs::residual}, {"out", &tensors.out, &LinearArgs::out}}) {
    detail::expect_rows_of(x, *tensor, name);
    args.*member = detail::rows_of(args.*member, name);
  }
  detail::run_on(x, options, [&](const LinearOptions& own, void* stream) { tessella::linear(args, own, stream); });
  detail::written(tensors.out);
  return tensors.out;
}

}  // namespace tessella::torch
