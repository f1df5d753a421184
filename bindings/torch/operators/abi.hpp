// torch's stable C ABI, as far as the operators need it: the names and types of torch/csrc/inductor/aoti_torch/c/shim.h
// and torch/csrc/stable/c/shim.h of torch 2.10, found in the torch that the process has loaded. torch promises to keep
// them, so that one build serves every later torch, and none is needed to build.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace tessella::operators {

// A value on the dispatcher's stack: a number as it is, or a pointer to a tensor, string, list or, of an optional one
// that is given, to a value.
using Value = uint64_t;
using Status = int32_t;  // 0 = success
using Kernel = void(Value* stack, uint64_t num_inputs, uint64_t num_outputs);
struct Tensor;
struct List;
struct String;
struct Library;
struct CudaGuard;

// The version whose formats of values are meant here.
inline constexpr uint64_t kVersion = uint64_t{2} << 56 | uint64_t{10} << 48;

struct Abi {
  Status (*library_init_impl)(const char* name_space, const char* key, const char* file, uint32_t line, Library**);
  Status (*library_impl)(Library*, const char* name, Kernel*, uint64_t version);
  Status (*call_dispatcher)(const char* name, const char* overload, Value* stack, uint64_t version);

  Status (*delete_tensor)(Tensor*);
  Status (*get_data_ptr)(Tensor*, void**);
  Status (*get_dim)(Tensor*, int64_t*);
  Status (*get_sizes)(Tensor*, int64_t**);
  Status (*get_strides)(Tensor*, int64_t**);
  Status (*get_dtype)(Tensor*, int32_t*);
  Status (*get_device_type)(Tensor*, int32_t*);
  Status (*get_device_index)(Tensor*, int32_t*);
  Status (*empty_strided)(int64_t ndim, const int64_t* sizes, const int64_t* strides, int32_t dtype,
                          int32_t device_type, int32_t device_index, Tensor**);

  Status (*list_size)(List*, size_t*);
  Status (*list_get_item)(List*, size_t, Value*);
  Status (*delete_list)(List*);
  Status (*string_c_str)(String*, const char**);
  Status (*delete_string)(String*);
  Status (*get_num_threads)(uint32_t*);
  int32_t (*memory_format_contiguous)();

  int32_t cpu, cuda;   // device types
  int32_t dtypes[13];  // torch's number of each tessella_dtype, -1 where it has none

  // Of libtorch_cuda.so; null where it is not loaded.
  Status (*current_cuda_stream)(int32_t device_index, void** stream);
  Status (*create_cuda_guard)(int32_t device_index, CudaGuard**);
  Status (*delete_cuda_guard)(CudaGuard*);
};

// Finds every function; the sentence says which one this torch lacks.
Abi find_abi();

inline void check(Status status, const char* what) {
  if (status != 0) throw std::runtime_error(std::string("tessella: torch could not ") + what);
}

}  // namespace tessella::operators
