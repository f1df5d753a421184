// at::Tensor as the C++ API takes it: views, torch's streams, memory and threads.
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
#include <tessella/arguments.hpp>

namespace tessella::torch::detail {

[[noreturn]] inline void fail(const char* function, ErrorCode code, const std::string& message) {
  throw Error(code, (std::string(function) + ": " + message).c_str());
}

// Types that are younger than the oldest libtorch which compiles this: by their names.
inline constexpr const char *kFloat8E4m3 = "Float8_e4m3fn", *kFloat8E5m2 = "Float8_e5m2";
inline bool is_named(at::ScalarType type, const char* name) { return std::string(c10::toString(type)) == name; }
// Undefined where this libtorch has it not.
inline at::ScalarType type_named(const char* name) {
  for (int type = 0; type < static_cast<int>(at::ScalarType::NumOptions); ++type) {
    if (is_named(static_cast<at::ScalarType>(type), name)) return static_cast<at::ScalarType>(type);
  }
  return at::ScalarType::Undefined;
}

inline DType dtype_of(const char* function, const at::Tensor& tensor, const char* name) {
  switch (tensor.scalar_type()) {
    case at::kDouble: return f64;
    case at::kFloat: return f32;
    case at::kBFloat16: return bf16;
    case at::kHalf: return f16;
    case at::kBool: return boolean;
    case at::kInt: return i32;
    case at::kLong: return i64;
    case at::kByte: return u8;
    case at::kChar: return i8;
    default:
      if (is_named(tensor.scalar_type(), kFloat8E4m3)) return f8e4m3fn;
      if (is_named(tensor.scalar_type(), kFloat8E5m2)) return f8e5m2;
      fail(function, ErrorCode::unsupported,
           std::string(name) + " has dtype " + c10::toString(tensor.scalar_type()) +
               ", expected f64, f32, bf16, f16, bool, i32, i64, u8, i8, f8e4m3fn or f8e5m2");
  }
}

inline Device device_of(const char* function, const at::Tensor& tensor, const char* name) {
  if (tensor.is_cpu()) return {TESSELLA_CPU, 0};
  if (tensor.is_cuda()) return {TESSELLA_CUDA, static_cast<int32_t>(tensor.get_device())};
  fail(function, ErrorCode::unsupported,
       std::string(name) + " is on " + tensor.device().str() + ", expected cpu or cuda");
}

// Absent where the tensor is undefined.
inline TensorView view(const char* function, const at::Tensor& tensor, const char* name) {
  if (!tensor.defined()) return {};
  if (tensor.is_nested() || tensor.layout() != at::kStrided) {
    fail(function, ErrorCode::unsupported, std::string(name) + " is sparse or nested, expected a strided tensor");
  }
  if (tensor.is_neg()) {  // the memory holds the numbers before it
    fail(function, ErrorCode::unsupported, std::string(name) + " has the negative bit, expected resolve_neg() of it");
  }
  if (tensor.dim() == 0 || tensor.dim() > 8) {
    fail(function, ErrorCode::invalid_argument,
         std::string(name) + " has " + std::to_string(tensor.dim()) + " axes, expected 1 to 8");
  }
  if (c10::GradMode::is_enabled() && tensor.requires_grad()) {
    fail(function, ErrorCode::unsupported,
         std::string(name) + " requires grad, and has no gradient, expected detach() of it");
  }
  if (tensor._fw_grad(0).defined()) {
    fail(function, ErrorCode::unsupported,
         std::string(name) + " has a tangent, and there is no derivative yet, expected detach() of it");
  }
  const Device device = device_of(function, tensor, name);
  tessella_tensor view{};
  view.data = tensor.data_ptr();
  view.dtype = static_cast<tessella_dtype>(dtype_of(function, tensor, name));
  view.ndim = static_cast<int32_t>(tensor.dim());
  view.device_type = device.type;
  view.device_id = device.id;
  for (int axis = 0; axis < view.ndim; ++axis) {
    view.shape[axis] = tensor.size(axis);
    view.strides[axis] = tensor.stride(axis);
  }
  return TensorView(view);
}

inline TensorView required(const char* function, const at::Tensor& tensor, const char* name) {
  if (!tensor.defined())
    fail(function, ErrorCode::invalid_argument, std::string(name) + " is undefined, expected a tensor");
  return view(function, tensor, name);
}

// k or v of a cache: bytes of u8 are what kv_dtype says, two elements of i4 or one of i8 or f8e4m3fn.
inline TensorView as_cache(const char* function, const TensorView& given, const char* name, DType kv_dtype) {
  if (kv_dtype == DType::none || !given.is_present()) return given;
  tessella_tensor view = given.c_tensor();
  const auto dtype = static_cast<DType>(view.dtype);
  if (kv_dtype != i4 && kv_dtype != i8 && kv_dtype != f8e4m3fn) {
    fail(function, ErrorCode::invalid_argument,
         std::string("kv_dtype is ") + name_of(kv_dtype) + ", expected i4, i8 or f8e4m3fn");
  }
  if (dtype == kv_dtype) return given;
  if (dtype != u8) {
    fail(function, ErrorCode::invalid_argument,
         std::string(name) + " has dtype " + name_of(dtype) + ", expected u8, whose bytes kv_dtype " +
             name_of(kv_dtype) + " names");
  }
  view.dtype = static_cast<tessella_dtype>(kv_dtype);
  if (kv_dtype == i4) {
    const int last = view.ndim - 1;
    for (int axis = 0; axis < last; ++axis) view.strides[axis] *= 2;
    if (view.shape[last] == 1) view.strides[last] = 1;
    view.shape[last] *= 2;
  }
  return TensorView(view);
}

// Tells whoever saved the tensor for a backward that it is another one now.
inline void written(const at::Tensor& tensor) {
  if (tensor.defined() && !tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

template <typename Stream>
void* handle_of(const Stream& stream) {
  if constexpr (requires { stream.native_handle(); }) {
    return stream.native_handle();
  } else {
#ifdef TESSELLA_TORCH_HAS_CUDA_HEADERS
    return c10::cuda::CUDAStream(stream).stream();
#else
    fail("tessella::torch", ErrorCode::unsupported,
         "a tensor is on a GPU, and this libtorch gives no handle of a stream without CUDA's headers, "
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

// run(options, stream) on the device of the tensor, with torch's memory and number of threads.
template <typename Options, typename Run>
void run_on(const at::Tensor& tensor, Options options, Run&& run) {
  const c10::DeviceGuard guard(tensor.device());
  void* stream = nullptr;
  if (tensor.is_cuda()) {
    stream = current_stream(tensor.device());
    if (options.allocator == nullptr) options.allocator = cuda_allocator();
  } else if (options.num_threads == 0) {
    options.num_threads = at::get_num_threads();
  }
  run(options, stream);
}

}  // namespace tessella::torch::detail

#undef TESSELLA_TORCH_HAS_CUDA_HEADERS
