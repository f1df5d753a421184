// A stand-in for libcuda.so.1 that runs nothing and remembers what it was asked: tests of the host side need no GPU.
// FAKE_CUDA_VERSION (13000), FAKE_CUDA_ARCH (90), FAKE_CUDA_INIT, FAKE_CUDA_LOAD and FAKE_CUDA_ALLOC (0: the result of
// cuInit, cuLibraryLoadData and cuMemAllocAsync) say how it behaves, FAKE_CUDA_NAME what its two GPUs are called.
// FAKE_CUDA_PARAMS is the size of kernels' parameters, "BYTES"; "BYTES NAME=BYTES" gives another one to those whose
// symbol holds NAME.
#include "fake_driver.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/driver/driver_types.hpp"

namespace {

using namespace tessella::cuda;

constexpr int kNumDevices = 2;

int setting(const char* name, int otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::atoi(value);
}
size_t params_bytes(std::string_view symbol) {
  const char* value = std::getenv("FAKE_CUDA_PARAMS");
  if (value == nullptr) return sizeof(FakeParams);
  std::istringstream words(value);
  size_t bytes = 0;
  words >> bytes;
  for (std::string word; words >> word;) {
    const size_t name_end = word.find('=');
    if (symbol.find(word.substr(0, name_end)) != std::string_view::npos) bytes = std::stoul(word.substr(name_end + 1));
  }
  return bytes;
}
CUresult result_setting(const char* name) { return static_cast<CUresult>(setting(name, 0)); }

FakeDriver g_state;
pid_t g_process = 0;  // that initialised it
// A context is the address of an element: primary ones first, then one of the caller's own for each device.
char g_contexts[2 * kNumDevices];
thread_local std::vector<CUcontext> t_current;

CUcontext context_at(int idx) { return reinterpret_cast<CUcontext>(&g_contexts[idx]); }
int device_of_context(CUcontext context) {
  return static_cast<int>(reinterpret_cast<char*>(context) - g_contexts) % kNumDevices;
}
CUresult ready() { return g_process == ::getpid() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED; }

CUresult init(unsigned) {
  g_process = ::getpid();
  return result_setting("FAKE_CUDA_INIT");
}
CUresult error_name(CUresult result, const char** name) {
  *name = "CUDA_ERROR_FAKE";
  return result == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
CUresult error_string(CUresult, const char** string) {
  *string = "as the test wishes";
  return CUDA_SUCCESS;
}
CUresult device_get(CUdevice* device, int ordinal) {
  *device = ordinal;
  return ready();
}
CUresult device_count(int* count) {
  *count = kNumDevices;
  return ready();
}
CUresult device_name(char* name, int length, CUdevice) {
  const char* given = std::getenv("FAKE_CUDA_NAME");
  std::strncpy(name, given != nullptr ? given : "Fake GPU", static_cast<size_t>(length));
  return ready();
}
CUresult device_attribute(int* value, CUdevice_attribute attribute, CUdevice) {
  const int arch = setting("FAKE_CUDA_ARCH", 90);
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = arch / 10; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = arch % 10; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = 232448; break;
    default: *value = 100; break;
  }
  return ready();
}
CUresult total_memory(size_t* bytes, CUdevice) {
  *bytes = size_t{80} << 30;
  return ready();
}
CUresult retain_primary(CUcontext* context, CUdevice device) {
  ++g_state.num_retained;
  *context = context_at(device);
  return ready();
}
CUresult get_current(CUcontext* context) {
  *context = t_current.empty() ? nullptr : t_current.back();
  return ready();
}
CUresult get_device(CUdevice* device) {
  if (t_current.empty()) return CUDA_ERROR_INVALID_VALUE;
  *device = device_of_context(t_current.back());
  return ready();
}
CUresult push(CUcontext context) {
  t_current.push_back(context);
  return ready();
}
CUresult pop(CUcontext* context) {
  if (t_current.empty()) return CUDA_ERROR_INVALID_VALUE;
  *context = t_current.back();
  t_current.pop_back();
  return CUDA_SUCCESS;
}
// Even addresses are host memory; odd ones belong to GPU 1.
CUresult pointer_attributes(unsigned, CUpointer_attribute*, void** values, CUdeviceptr pointer) {
  if (ready() != CUDA_SUCCESS) return ready();
  *static_cast<unsigned*>(values[0]) = pointer % 2 == 0 ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
  *static_cast<int*>(values[1]) = 1;
  return CUDA_SUCCESS;
}
CUresult memory_info(size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = 1000;
  *total_bytes = 80000;
  return ready();
}
CUresult allocate(CUdeviceptr* pointer, size_t, CUstream) {
  *pointer = 1;
  ++g_state.num_allocations;
  return result_setting("FAKE_CUDA_ALLOC");
}
CUresult free_memory(CUdeviceptr, CUstream) { return ready(); }
CUresult zero(CUdeviceptr, unsigned char, size_t, CUstream) {
  ++g_state.num_zeroed;
  return ready();
}
CUresult context_id(CUcontext context, unsigned long long* id) {
  *id = static_cast<unsigned long long>(reinterpret_cast<char*>(context) - g_contexts);
  return ready();
}
CUresult stream_id(CUstream stream, unsigned long long* id) {
  *id = reinterpret_cast<uintptr_t>(stream);
  return ready();
}
CUresult is_capturing(CUstream, CUstreamCaptureStatus* status) {
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return ready();
}
CUresult load_library(CUlibrary* library, const void*, int*, void**, unsigned, int*, void**, unsigned) {
  *library = reinterpret_cast<CUlibrary>(&g_state);
  ++g_state.num_loaded;
  return result_setting("FAKE_CUDA_LOAD");
}
// The handle of a kernel or function is the size of its parameters.
CUresult get_kernel(CUkernel* kernel, CUlibrary, const char* symbol) {
  *kernel = reinterpret_cast<CUkernel>(params_bytes(symbol));
  return CUDA_SUCCESS;
}
CUresult get_function(CUfunction* function, CUkernel kernel) {
  *function = reinterpret_cast<CUfunction>(kernel);
  return CUDA_SUCCESS;
}
CUresult set_attribute(CUfunction_attribute attribute, int value, CUkernel, CUdevice device) {
  if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) g_state.max_shared_bytes[device] = value;
  return CUDA_SUCCESS;
}
CUresult param_info(CUkernel kernel, size_t, size_t* offset, size_t* size) {
  *offset = 0;
  *size = reinterpret_cast<uintptr_t>(kernel);
  return CUDA_SUCCESS;
}
CUresult load_function(CUfunction) {
  ++g_state.num_function_loads;
  return CUDA_SUCCESS;
}
CUresult launch(const CUlaunchConfig* config, CUfunction function, void** params, void**) {
  g_state.launched_on = device_of_context(t_current.back());
  g_state.config = *config;
  g_state.launches.push_back(*config);
  g_state.attributes.assign(config->attrs, config->attrs + config->numAttrs);
  std::memcpy(&g_state.params, params[0], sizeof g_state.params);
  const auto* bytes = static_cast<const std::byte*>(params[0]);
  g_state.parameters.assign(bytes, bytes + reinterpret_cast<uintptr_t>(function));
  return CUDA_SUCCESS;
}
CUresult encode_tensor_map(CUtensorMap*, CUtensorMapDataType type, uint32_t, void*, const uint64_t* sizes,
                           const uint64_t* strides, const uint32_t* box, const uint32_t*, CUtensorMapInterleave,
                           CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  FakeDriver::TensorMap& map = g_state.tensor_maps.emplace_back();
  map.type = type;
  std::copy_n(sizes, 4, map.sizes);
  std::copy_n(strides, 3, map.strides);
  std::copy_n(box, 4, map.box);
  return CUDA_SUCCESS;
}
CUresult unsupported() { return static_cast<CUresult>(801); }

// A function that fails when its turn comes.
template <auto Function>
struct MayFail;
template <typename... Args, CUresult (*Function)(Args...)>
struct MayFail<Function> {
  static CUresult call(Args... args) {
    int& left = g_state.calls_until_failure;
    return left >= 0 && left-- == 0 ? CUDA_ERROR_OUT_OF_MEMORY : Function(args...);
  }
};

}  // namespace

extern "C" {

CUresult cuDriverGetVersion(int* version) {
  *version = setting("FAKE_CUDA_VERSION", 13000);
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** values, CUdeviceptr pointer) {
  return pointer_attributes(count, attributes, values, pointer);
}

CUresult cuGetProcAddress_v2(const char* name, void** function, int, uint64_t, int*) {
  static const std::map<std::string, void*> kFunctions{
      {"cuInit", reinterpret_cast<void*>(init)},
      {"cuGetErrorName", reinterpret_cast<void*>(error_name)},
      {"cuGetErrorString", reinterpret_cast<void*>(error_string)},
      {"cuDeviceGet", reinterpret_cast<void*>(MayFail<device_get>::call)},
      {"cuDeviceGetCount", reinterpret_cast<void*>(MayFail<device_count>::call)},
      {"cuDeviceGetName", reinterpret_cast<void*>(MayFail<device_name>::call)},
      {"cuDeviceGetAttribute", reinterpret_cast<void*>(MayFail<device_attribute>::call)},
      {"cuDeviceTotalMem", reinterpret_cast<void*>(MayFail<total_memory>::call)},
      {"cuDevicePrimaryCtxRetain", reinterpret_cast<void*>(MayFail<retain_primary>::call)},
      {"cuCtxGetCurrent", reinterpret_cast<void*>(MayFail<get_current>::call)},
      {"cuCtxGetDevice", reinterpret_cast<void*>(MayFail<get_device>::call)},
      {"cuCtxPushCurrent", reinterpret_cast<void*>(MayFail<push>::call)},
      {"cuCtxPopCurrent", reinterpret_cast<void*>(pop)},
      {"cuMemGetInfo", reinterpret_cast<void*>(MayFail<memory_info>::call)},
      {"cuMemAllocAsync", reinterpret_cast<void*>(MayFail<allocate>::call)},
      {"cuMemFreeAsync", reinterpret_cast<void*>(free_memory)},
      {"cuMemsetD8Async", reinterpret_cast<void*>(MayFail<zero>::call)},
      {"cuCtxGetId", reinterpret_cast<void*>(MayFail<context_id>::call)},
      {"cuStreamGetId", reinterpret_cast<void*>(MayFail<stream_id>::call)},
      {"cuStreamIsCapturing", reinterpret_cast<void*>(MayFail<is_capturing>::call)},
      {"cuLibraryLoadData", reinterpret_cast<void*>(MayFail<load_library>::call)},
      {"cuLibraryGetKernel", reinterpret_cast<void*>(MayFail<get_kernel>::call)},
      {"cuKernelGetFunction", reinterpret_cast<void*>(MayFail<get_function>::call)},
      {"cuKernelSetAttribute", reinterpret_cast<void*>(MayFail<set_attribute>::call)},
      {"cuKernelGetParamInfo", reinterpret_cast<void*>(MayFail<param_info>::call)},
      {"cuFuncLoad", reinterpret_cast<void*>(MayFail<load_function>::call)},
      {"cuLaunchKernelEx", reinterpret_cast<void*>(MayFail<launch>::call)},
      {"cuTensorMapEncodeTiled", reinterpret_cast<void*>(MayFail<encode_tensor_map>::call)},
  };
  const auto found = kFunctions.find(name);
  *function = found == kFunctions.end() ? reinterpret_cast<void*>(unsupported) : found->second;
  return CUDA_SUCCESS;
}

FakeDriver* fake_driver() { return &g_state; }
// A context that is not the primary one, as a program makes for itself.
CUcontext fake_own_context(int device) { return context_at(kNumDevices + device); }

}  // extern "C"
