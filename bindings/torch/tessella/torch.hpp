// Attention on at::Tensor, CPU and CUDA: header-only, over <tessella/attention.hpp>, for ATen of libtorch 1.13 and
// later.
//
//   at::Tensor out = tessella::torch::attention(q, k, v, {.mask = tessella::Mask::causal()});
//
// Nothing is copied. On a GPU work is queued on torch's current stream, and the workspace is of torch's allocator; on
// the CPU as many threads run as at::get_num_threads() says. Failures throw tessella::Error, those of torch's
// own allocation c10::Error; nothing is touched then.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
// A stream's handle without CUDA's headers is younger than libtorch 2.4.
#if __has_include(<c10/cuda/impl/cuda_cmake_macros.h>) && __has_include(<cuda_runtime_api.h>)
#include <c10/cuda/CUDAStream.h>
#define TESSELLA_TORCH_HAS_CUDA_HEADERS
#endif

#include <string>
#include <tessella/attention.hpp>
#include <tuple>
#include <vector>

namespace tessella::torch {

// Arrays of a call beside q, k and v, as ForwardArgs names and shapes them; an undefined tensor is absent.
struct Tensors {
  at::Tensor out = {};  // (batch, seqlen_q, heads_q, head_dim_v), dtype of q or f32; made when absent
  at::Tensor lse = {};  // (batch, heads_q, seqlen_q) f32; not written when absent
  at::Tensor seqlens_q = {}, seqlens_kv = {};
  at::Tensor cu_seqlens_q = {}, cu_seqlens_kv = {};
  at::Tensor leftpad_kv = {};
  at::Tensor page_table = {};
  at::Tensor bias = {};
  at::Tensor alibi_slopes = {};
  at::Tensor sink = {};
  at::Tensor seed = {}, offset = {};
  std::vector<at::Tensor> mod_args = {};
};

namespace detail {

[[noreturn]] inline void refuse(ErrorCode code, const std::string& text) {
  throw Error(code, ("attention: " + text).c_str());
}

inline DType dtype_of(const at::Tensor& tensor, const char* name) {
  switch (tensor.scalar_type()) {
    case at::kDouble: return f64;
    case at::kFloat: return f32;
    case at::kBFloat16: return bf16;
    case at::kHalf: return f16;
    case at::kBool: return boolean;
    case at::kInt: return i32;
    case at::kLong: return i64;
    default:
      refuse(ErrorCode::unsupported, std::string(name) + " has dtype " + c10::toString(tensor.scalar_type()) +
                                         ", expected f64, f32, bf16, f16, bool, i32 or i64");
  }
}

inline Device device_of(const at::Tensor& tensor, const char* name) {
  if (tensor.is_cpu()) return {TESSELLA_CPU, 0};
  if (tensor.is_cuda()) return {TESSELLA_CUDA, static_cast<int32_t>(tensor.get_device())};
  refuse(ErrorCode::unsupported, std::string(name) + " is on " + tensor.device().str() + ", expected cpu or cuda");
}

// Absent where the tensor is undefined.
inline TensorView view(const at::Tensor& tensor, const char* name) {
  if (!tensor.defined()) return {};
  if (tensor.is_nested() || tensor.layout() != at::kStrided) {
    refuse(ErrorCode::unsupported, std::string(name) + " is sparse or nested, expected a strided tensor");
  }
  if (tensor.is_neg()) {  // the memory holds the numbers before it
    refuse(ErrorCode::unsupported, std::string(name) + " has the negative bit, expected resolve_neg() of it");
  }
  if (tensor.dim() == 0 || tensor.dim() > 8) {
    refuse(ErrorCode::invalid_argument,
           std::string(name) + " has " + std::to_string(tensor.dim()) + " axes, expected 1 to 8");
  }
  if (c10::GradMode::is_enabled() && tensor.requires_grad()) {
    refuse(ErrorCode::unsupported, std::string(name) +
                                       " requires grad, and there is no backward yet, expected a call "
                                       "under torch::NoGradGuard, or a detached tensor");
  }
  if (tensor._fw_grad(0).defined()) {
    refuse(ErrorCode::unsupported,
           std::string(name) + " has a tangent, and there is no derivative yet, expected detach() of it");
  }
  const Device device = device_of(tensor, name);
  tessella_tensor view{};
  view.data = tensor.data_ptr();
  view.dtype = static_cast<tessella_dtype>(dtype_of(tensor, name));
  view.ndim = static_cast<int32_t>(tensor.dim());
  view.device_type = device.type;
  view.device_id = device.id;
  for (int axis = 0; axis < view.ndim; ++axis) {
    view.shape[axis] = tensor.size(axis);
    view.strides[axis] = tensor.stride(axis);
  }
  return TensorView(view);
}

inline TensorView required(const at::Tensor& tensor, const char* name) {
  if (!tensor.defined()) refuse(ErrorCode::invalid_argument, std::string(name) + " is undefined, expected a tensor");
  return view(tensor, name);
}

template <typename Stream>
void* handle_of(const Stream& stream) {
  if constexpr (requires { stream.native_handle(); }) {
    return stream.native_handle();
  } else {
#ifdef TESSELLA_TORCH_HAS_CUDA_HEADERS
    return c10::cuda::CUDAStream(stream).stream();
#else
    refuse(ErrorCode::unsupported,
           "q is on a GPU, and this libtorch gives no handle of a stream without CUDA's headers, "
           "expected <cuda_runtime_api.h> on the include path when the program was compiled");
#endif
  }
}

inline void* current_stream(const at::Device& device) {
  return handle_of(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

// torch's caching allocator, on the current stream; the device is current too, by a guard of the call.
inline const tessella_allocator* cuda_allocator() {
  static const tessella_allocator allocator{
      [](size_t bytes, size_t, void*, void*) -> void* {
        try {
          return c10::GetAllocator(c10::DeviceType::CUDA)->raw_allocate(bytes);
        } catch (const c10::Error&) {
          return nullptr;  // out_of_memory
        }
      },
      [](void* data, size_t, void*, void*) { c10::GetAllocator(c10::DeviceType::CUDA)->raw_deallocate(data); },
      nullptr};
  return &allocator;
}

}  // namespace detail

// The tensor's memory as the C++ API takes it, for masks: Mask::document(tessella::torch::view(ids)). It keeps nothing
// alive.
inline TensorView view(const at::Tensor& tensor) { return detail::required(tensor, "tensor"); }

// Exact attention, out = softmax(scale * q . k^T, masked) . v, in linear memory.
//   q        (batch, seqlen_q, heads_q, head_dim_qk), f64, f32, bf16 or f16; transpose(1, 2) makes it of (b, h, s, d)
//   k, v     (batch, seqlen_kv, heads_kv, head_dim_qk or head_dim_v), dtype of q; heads_kv divides heads_q
//   returns  (batch, seqlen_q, heads_q, head_dim_v), dtype of q or options.out_dtype
// head_dim is contiguous; other strides are free. Fewer axes and packed sequences as in tessella.h. dropout's seed is
// that of the options, 0 where not set, or a tensor: none is drawn, and calls with the same seed drop the same entries.
// Throws Error: unsupported for a tensor that requires grad in grad mode, else as tessella::forward.
inline at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            AttentionOptions options = {}, const Tensors& tensors = {}) {
  ForwardArgs args{.q = detail::required(q, "q"),
                   .k = detail::required(k, "k"),
                   .v = detail::required(v, "v"),
                   .out = detail::view(tensors.out, "out"),
                   .lse = detail::view(tensors.lse, "lse"),
                   .seqlens_q = detail::view(tensors.seqlens_q, "seqlens_q"),
                   .seqlens_kv = detail::view(tensors.seqlens_kv, "seqlens_kv"),
                   .cu_seqlens_q = detail::view(tensors.cu_seqlens_q, "cu_seqlens_q"),
                   .cu_seqlens_kv = detail::view(tensors.cu_seqlens_kv, "cu_seqlens_kv"),
                   .leftpad_kv = detail::view(tensors.leftpad_kv, "leftpad_kv"),
                   .page_table = detail::view(tensors.page_table, "page_table"),
                   .bias = detail::view(tensors.bias, "bias"),
                   .alibi_slopes = detail::view(tensors.alibi_slopes, "alibi_slopes"),
                   .sink = detail::view(tensors.sink, "sink"),
                   .seed = detail::view(tensors.seed, "seed"),
                   .offset = detail::view(tensors.offset, "offset")};
  for (const at::Tensor& array : tensors.mod_args) args.mod_args.push_back(detail::required(array, "mod_args"));

  at::Tensor out = tensors.out;
  if (!out.defined()) {
    std::vector<int64_t> shape = q.sizes().vec();
    shape.back() = v.size(-1);
    out = at::empty(shape, q.options().dtype(options.out_dtype == f32 ? at::kFloat : q.scalar_type()));
    args.out = detail::view(out, "out");
  }
  const c10::DeviceGuard guard(q.device());
  void* stream = nullptr;
  if (q.is_cuda()) {
    stream = detail::current_stream(q.device());
    if (options.allocator == nullptr) options.allocator = detail::cuda_allocator();
  } else if (options.num_threads == 0) {
    options.num_threads = at::get_num_threads();
  }
  forward(args, options, stream);
  return out;
}

// The same, and the natural logarithm of the softmax's sum: (batch, heads_q, seqlen_q), packed (heads_q, total_q), f32.
inline std::tuple<at::Tensor, at::Tensor> attention_lse(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                        AttentionOptions options = {}, Tensors tensors = {}) {
  detail::required(q, "q");
  if (!tensors.lse.defined()) {
    std::vector<int64_t> shape = q.sizes().vec();
    shape.pop_back();
    if (shape.size() >= 2) std::swap(shape[shape.size() - 1], shape[shape.size() - 2]);
    tensors.lse = at::empty(shape, q.options().dtype(at::kFloat));
  }
  at::Tensor out = attention(q, k, v, std::move(options), tensors);
  return {out, tensors.lse};
}

}  // namespace tessella::torch

#undef TESSELLA_TORCH_HAS_CUDA_HEADERS
