#include "abi.hpp"

#include <dlfcn.h>
#include <tessella/tessella.h>

#include <algorithm>
#include <iterator>

namespace tessella::operators {
namespace {

// The library if the process has it, whose extensions load it for themselves alone.
void* loaded(const char* name) { return dlopen(name, RTLD_LAZY | RTLD_NOLOAD); }

template <typename Function>
void find(void* library, const char* name, Function*& function) {
  void* found = library == nullptr ? nullptr : dlsym(library, name);
  if (found == nullptr)
    throw std::runtime_error(std::string("torch has no ") + name + ", expected torch 2.10 or later");
  function = reinterpret_cast<Function*>(found);
}

int32_t number(void* library, const char* name) {
  int32_t (*get)() = nullptr;
  find(library, name, get);
  return get();
}

}  // namespace

Abi find_abi() {
  Abi abi{};
  void* cpu = loaded("libtorch_cpu.so");
  find(cpu, "aoti_torch_library_init_impl", abi.library_init_impl);
  find(cpu, "torch_library_impl", abi.library_impl);
  find(cpu, "torch_call_dispatcher", abi.call_dispatcher);
  find(cpu, "aoti_torch_delete_tensor_object", abi.delete_tensor);
  find(cpu, "aoti_torch_get_data_ptr", abi.get_data_ptr);
  find(cpu, "aoti_torch_get_dim", abi.get_dim);
  find(cpu, "aoti_torch_get_sizes", abi.get_sizes);
  find(cpu, "aoti_torch_get_strides", abi.get_strides);
  find(cpu, "aoti_torch_get_dtype", abi.get_dtype);
  find(cpu, "aoti_torch_get_device_type", abi.get_device_type);
  find(cpu, "aoti_torch_get_device_index", abi.get_device_index);
  find(cpu, "aoti_torch_empty_strided", abi.empty_strided);
  find(cpu, "torch_list_size", abi.list_size);
  find(cpu, "torch_list_get_item", abi.list_get_item);
  find(cpu, "torch_delete_list", abi.delete_list);
  find(cpu, "torch_string_c_str", abi.string_c_str);
  find(cpu, "torch_delete_string", abi.delete_string);
  find(cpu, "torch_get_num_threads", abi.get_num_threads);
  find(cpu, "aoti_torch_memory_format_contiguous_format", abi.memory_format_contiguous);
  abi.cpu = number(cpu, "aoti_torch_device_type_cpu");
  abi.cuda = number(cpu, "aoti_torch_device_type_cuda");

  std::fill(std::begin(abi.dtypes), std::end(abi.dtypes), -1);
  abi.dtypes[TESSELLA_F64] = number(cpu, "aoti_torch_dtype_float64");
  abi.dtypes[TESSELLA_F32] = number(cpu, "aoti_torch_dtype_float32");
  abi.dtypes[TESSELLA_BF16] = number(cpu, "aoti_torch_dtype_bfloat16");
  abi.dtypes[TESSELLA_F16] = number(cpu, "aoti_torch_dtype_float16");
  abi.dtypes[TESSELLA_BOOL] = number(cpu, "aoti_torch_dtype_bool");
  abi.dtypes[TESSELLA_I32] = number(cpu, "aoti_torch_dtype_int32");
  abi.dtypes[TESSELLA_I64] = number(cpu, "aoti_torch_dtype_int64");
  abi.dtypes[TESSELLA_U8] = number(cpu, "aoti_torch_dtype_uint8");
  abi.dtypes[TESSELLA_I8] = number(cpu, "aoti_torch_dtype_int8");
  abi.dtypes[TESSELLA_F8E4M3FN] = number(cpu, "aoti_torch_dtype_float8_e4m3fn");
  abi.dtypes[TESSELLA_F8E5M2] = number(cpu, "aoti_torch_dtype_float8_e5m2");

  if (void* cuda = loaded("libtorch_cuda.so"); cuda != nullptr) {
    find(cuda, "aoti_torch_get_current_cuda_stream", abi.current_cuda_stream);
    find(cuda, "aoti_torch_create_cuda_guard", abi.create_cuda_guard);
    find(cuda, "aoti_torch_delete_cuda_guard", abi.delete_cuda_guard);
  }
  return abi;
}

}  // namespace tessella::operators
