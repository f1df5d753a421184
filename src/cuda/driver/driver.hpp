// The CUDA driver, opened at run time: one program serves machines with and without a GPU.
#pragma once

#include <cstddef>
#include <string>

#include "cuda/driver/driver_types.hpp"

namespace tessella::cuda {

// The driver's functions, named as in cuda.h. A null stream is the legacy default stream.
struct Driver {
  CUresult (*cuInit)(unsigned flags);
  CUresult (*cuDriverGetVersion)(int* version);
  CUresult (*cuGetErrorName)(CUresult error, const char** name);
  CUresult (*cuGetErrorString)(CUresult error, const char** string);

  CUresult (*cuDeviceGet)(CUdevice* device, int ordinal);
  CUresult (*cuDeviceGetCount)(int* count);
  CUresult (*cuDeviceGetName)(char* name, int length, CUdevice device);
  CUresult (*cuDeviceGetAttribute)(int* value, CUdevice_attribute attribute, CUdevice device);
  CUresult (*cuDeviceTotalMem)(size_t* bytes, CUdevice device);
  CUresult (*cuDevicePrimaryCtxRetain)(CUcontext* context, CUdevice device);
  CUresult (*cuDevicePrimaryCtxRelease)(CUdevice device);
  CUresult (*cuCtxGetCurrent)(CUcontext* context);
  CUresult (*cuCtxGetDevice)(CUdevice* device);
  CUresult (*cuCtxPushCurrent)(CUcontext context);
  CUresult (*cuCtxPopCurrent)(CUcontext* context);
  CUresult (*cuCtxSynchronize)();

  CUresult (*cuPointerGetAttributes)(unsigned count, CUpointer_attribute* attributes, void** values, CUdeviceptr ptr);
  CUresult (*cuMemGetInfo)(size_t* free_bytes, size_t* total_bytes);
  CUresult (*cuMemAlloc)(CUdeviceptr* ptr, size_t bytes);
  CUresult (*cuMemFree)(CUdeviceptr ptr);
  CUresult (*cuMemAllocAsync)(CUdeviceptr* ptr, size_t bytes, CUstream stream);
  CUresult (*cuMemFreeAsync)(CUdeviceptr ptr, CUstream stream);
  CUresult (*cuMemcpyHtoD)(CUdeviceptr to, const void* from, size_t bytes);
  CUresult (*cuMemcpyDtoH)(void* to, CUdeviceptr from, size_t bytes);
  CUresult (*cuMemcpyHtoDAsync)(CUdeviceptr to, const void* from, size_t bytes, CUstream stream);
  CUresult (*cuMemcpyDtoHAsync)(void* to, CUdeviceptr from, size_t bytes, CUstream stream);
  CUresult (*cuMemsetD8Async)(CUdeviceptr ptr, unsigned char value, size_t count, CUstream stream);

  CUresult (*cuStreamCreate)(CUstream* stream, unsigned flags);
  CUresult (*cuStreamDestroy)(CUstream stream);
  CUresult (*cuStreamSynchronize)(CUstream stream);
  CUresult (*cuStreamIsCapturing)(CUstream stream, CUstreamCaptureStatus* status);
  CUresult (*cuEventCreate)(CUevent* event, unsigned flags);
  CUresult (*cuEventDestroy)(CUevent event);
  CUresult (*cuEventRecord)(CUevent event, CUstream stream);
  CUresult (*cuEventSynchronize)(CUevent event);
  CUresult (*cuEventElapsedTime)(float* milliseconds, CUevent start, CUevent end);

  CUresult (*cuLibraryLoadData)(CUlibrary* library, const void* image, int* jit_options, void** jit_values,
                                unsigned num_jit, int* library_options, void** library_values, unsigned num_library);
  CUresult (*cuLibraryUnload)(CUlibrary library);
  CUresult (*cuLibraryGetKernel)(CUkernel* kernel, CUlibrary library, const char* name);
  CUresult (*cuKernelGetFunction)(CUfunction* function, CUkernel kernel);
  CUresult (*cuKernelGetAttribute)(int* value, CUfunction_attribute attribute, CUkernel kernel, CUdevice device);
  CUresult (*cuKernelSetAttribute)(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device);
  CUresult (*cuLaunchKernelEx)(const CUlaunchConfig* config, CUfunction function, void** params, void** extra);
  CUresult (*cuTensorMapEncodeTiled)(CUtensorMap* map, CUtensorMapDataType type, uint32_t rank, void* address,
                                     const uint64_t* sizes, const uint64_t* strides_bytes, const uint32_t* box,
                                     const uint32_t* element_strides, CUtensorMapInterleave interleave,
                                     CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                     CUtensorMapFloatOOBfill fill);

  // CUDA 12.0; null in older drivers.
  CUresult (*cuStreamGetId)(CUstream stream, unsigned long long* id);
  CUresult (*cuCtxGetId)(CUcontext context, unsigned long long* id);
  // CUDA 12.4; null in older drivers.
  CUresult (*cuFuncLoad)(CUfunction function);
  CUresult (*cuKernelGetParamInfo)(CUkernel kernel, size_t param_idx, size_t* offset, size_t* size);
};

// The driver, initialised, with at least one GPU; nullptr when there is none. Opened once per process.
const Driver* driver();

// The driver, or Error(device) with driver_problem().
const Driver& required_driver();

// Why driver() is nullptr, in one sentence; "" when it is not.
std::string driver_problem();

// CUDA version that the driver supports, 13000 for 13.0; 0 without a driver. Does not initialise CUDA, after which no
// child that this process forks could use it.
int driver_version();

// Why a driver that supports this CUDA version is too old, in one sentence, or "".
std::string driver_version_problem(int version);

// True if this process has opened the driver, whoever did: before that no pointer can be a GPU's.
bool driver_is_loaded();

// Error(device, or out_of_memory) saying what failed.
[[noreturn]] void fail(CUresult result, const char* what);
inline void check(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) [[unlikely]]
    fail(result, what);
}

// The same for an allocation. The message says how many bytes were wanted and how many are free on the device.
[[noreturn]] void fail_allocation(CUresult result, const char* what, size_t bytes);
inline void check_allocation(CUresult result, const char* what, size_t bytes) {
  if (result != CUDA_SUCCESS) [[unlikely]]
    fail_allocation(result, what, bytes);
}

}  // namespace tessella::cuda
