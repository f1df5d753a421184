#include "cuda/launch/linear_arguments.hpp"

#include "core/element.hpp"

namespace tessella::cuda {

portable::LinearOut linear_out(const core::LinearArguments& a) {
  constexpr int32_t kPairBytes = 4;
  const auto has_pairs = [](const core::Operand& t) {
    return t.dtype == core::DType::none || (core::size_bits(t.dtype) == 16 && core::alignment(t) >= kPairBytes);
  };
  return {.out = a.out.data,
          .residual = a.residual.data,
          .bias = a.bias.data,
          .w_scale = a.w_scale.data,
          .out_stride = a.out.row_stride,
          .residual_stride = a.residual.row_stride,
          .w_scale_stride = a.w_scale.stride,
          .rows = static_cast<int32_t>(a.rows),
          .out_features = static_cast<int32_t>(a.out_features),
          .out_element = core::element(a.out.dtype),
          .bias_element = core::element(a.bias.data == nullptr ? a.dtype() : a.bias.dtype),
          .has_pairs = has_pairs(a.out) && has_pairs(a.residual) ? 1 : 0};
}

portable::LinearOperands linear_operands(const core::LinearArguments& a) {
  return {.x = a.x.data,
          .w = a.w.data,
          .x_stride = a.x.row_stride,
          .w_stride = a.w.row_stride,
          .in_features = static_cast<int32_t>(a.in_features),
          .is_swiglu = a.activation == core::Activation::swiglu ? 1 : 0,
          .weights_ready = a.weights_ready ? 1 : 0};
}

}  // namespace tessella::cuda
