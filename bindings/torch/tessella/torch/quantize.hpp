// quantize and dequantize on at::Tensor. Neither has a gradient.
//
//   tessella::torch::quantize(k, k8, {.scale_block = 128, .hadamard = true}, {.scale = k_scale, .mean = k_mean});
#pragma once

#include <tessella/quantize.hpp>
#include <tessella/torch/tensor.hpp>

namespace tessella::torch {

// Arrays of a call beside x and out, as QuantizeArgs names and shapes them; an undefined tensor is absent. scale
// without options.scales_given, mean and lse_shift are written.
struct QuantizeTensors {
  // generated: tensors, from src/api/arguments.toml
  at::Tensor scale = {};
  at::Tensor mean = {};
  at::Tensor k_mean = {};
  at::Tensor lse_shift = {};
  at::Tensor cu_seqlens = {};
  at::Tensor rotary_cos = {}, rotary_sin = {};
  at::Tensor rotary_offsets = {};
  // end of generated
  bool is_transposed = false;  // out is (batch, heads, head_dim, seqlen in whole tiles of 128)
};

// Arrays of dequantize beside x and out; all are read.
struct DequantizeTensors {
  at::Tensor scale = {}, mean = {};
  at::Tensor cu_seqlens = {};
  bool is_transposed = false;  // x is
};

namespace detail {

inline TensorView elements(const char* function, const at::Tensor& tensor, const char* name, bool is_transposed) {
  const TensorView plain = required(function, tensor, name);
  if (!is_transposed) return plain;
  tessella_tensor view = plain.c_tensor();
  view.flags |= TESSELLA_TRANSPOSED;
  return TensorView(view);
}

}  // namespace detail

// Writes rows x as elements of 8 bits.
//   x    (batch, seqlen, heads, head_dim), packed (total, heads, head_dim), f32, bf16 or f16
//   out  as x, or transposed: f8e4m3fn or f8e5m2
// Throws Error as tessella::quantize.
inline void quantize(const at::Tensor& x, const at::Tensor& out, const QuantizeOptions& options = {},
                     const QuantizeTensors& tensors = {}) {
  const auto view = [](const at::Tensor& tensor, const char* name) { return detail::view("quantize", tensor, name); };
  QuantizeArgs args{.x = detail::required("quantize", x, "x"),
                    .out = detail::elements("quantize", out, "out", tensors.is_transposed)};
  // generated: views, from src/api/arguments.toml
  args.scale = view(tensors.scale, "scale");
  args.mean = view(tensors.mean, "mean");
  args.k_mean = view(tensors.k_mean, "k_mean");
  args.lse_shift = view(tensors.lse_shift, "lse_shift");
  args.cu_seqlens = view(tensors.cu_seqlens, "cu_seqlens");
  args.rotary_cos = view(tensors.rotary_cos, "rotary_cos");
  args.rotary_sin = view(tensors.rotary_sin, "rotary_sin");
  args.rotary_offsets = view(tensors.rotary_offsets, "rotary_offsets");
  // end of generated
  detail::run_on(x, options, [&](const QuantizeOptions& own, void* stream) { tessella::quantize(args, own, stream); });
  detail::written(out);
  if (!options.scales_given) detail::written(tensors.scale);
  detail::written(tensors.mean);
  detail::written(tensors.lse_shift);
}

// Writes what quantize has stored as numbers of the dtype of out, f32, bf16 or f16. Throws Error as
// tessella::dequantize.
inline void dequantize(const at::Tensor& x, const at::Tensor& out, const DequantizeOptions& options = {},
                       const DequantizeTensors& tensors = {}) {
  const auto view = [](const at::Tensor& tensor, const char* name) { return detail::view("dequantize", tensor, name); };
  const DequantizeArgs args{.x = detail::elements("dequantize", x, "x", tensors.is_transposed),
                            .out = detail::required("dequantize", out, "out"),
                            .scale = view(tensors.scale, "scale"),
                            .mean = view(tensors.mean, "mean"),
                            .cu_seqlens = view(tensors.cu_seqlens, "cu_seqlens")};
  detail::run_on(x, options,
                 [&](const DequantizeOptions& own, void* stream) { tessella::dequantize(args, own, stream); });
  detail::written(out);
}

}  // namespace tessella::torch
