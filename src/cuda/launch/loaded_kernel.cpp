#include "cuda/launch/loaded_kernel.hpp"

#include <map>
#include <mutex>
#include <tuple>

#include "core/error.hpp"
#include "core/message.hpp"
#include "cuda/compile/find_cubin.hpp"
#include "cuda/driver/gpus.hpp"

namespace tessella::cuda {
namespace {

using core::message;

[[noreturn]] void fail_load(CUresult result, const Cubin& cubin, const DeviceInfo& device) {
  switch (result) {
    case CUDA_ERROR_INVALID_IMAGE:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
      throw core::Error(
          core::ErrorCode::device,
          message("the driver, which supports CUDA ", driver_version() / 1000, ".", driver_version() % 1000 / 10,
                  ", does not load a kernel of NVRTC ", cubin.compiler.string(), " for ", cubin.target, " on GPU ",
                  device.id, " (", device.name, ", sm_", device.arch, "), expected a newer driver"));
    default: fail(result, "cuLibraryLoadData");
  }
}

// The driver's launch configuration.
struct LaunchConfig {
  CUlaunchAttribute attributes[2] = {};
  CUlaunchConfig config;

  LaunchConfig(const Blocks& blocks, int dynamic_shared_bytes, void* stream)
      : config{.gridDimX = blocks.grid[0],
               .gridDimY = blocks.grid[1],
               .gridDimZ = blocks.grid[2],
               .blockDimX = blocks.threads,
               .blockDimY = 1,
               .blockDimZ = 1,
               .sharedMemBytes = static_cast<unsigned>(dynamic_shared_bytes),
               .hStream = static_cast<CUstream>(stream),
               .attrs = attributes,
               .numAttrs = 0} {
    if (blocks.cluster > 1) {
      CUlaunchAttribute& attribute = attributes[config.numAttrs++];
      attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
      attribute.value.clusterDim = {blocks.cluster, 1, 1};
    }
    if (blocks.is_dependent) {
      CUlaunchAttribute& attribute = attributes[config.numAttrs++];
      attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
      attribute.value.programmaticStreamSerializationAllowed = 1;
    }
  }
  LaunchConfig(const LaunchConfig&) = delete;  // config points to attributes
};

}  // namespace

LoadedKernel::LoadedKernel(std::shared_ptr<const Cubin> cubin, int device_id, int dynamic_shared_bytes)
    : cubin_(std::move(cubin)), device_id_(device_id), dynamic_shared_bytes_(dynamic_shared_bytes) {
  const Driver& cu = required_driver();
  const DeviceInfo& device = device_info(device_id);
  if (dynamic_shared_bytes > device.shared_bytes_per_block) {
    throw core::Error(core::ErrorCode::internal,
                      message(cubin_->symbol, ": needs ", dynamic_shared_bytes, " bytes of shared memory, and GPU ",
                              device.id, " (", device.name, ") has ", device.shared_bytes_per_block));
  }
  CUlibrary library = nullptr;
  if (const CUresult result =
          cu.cuLibraryLoadData(&library, cubin_->image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
      result != CUDA_SUCCESS) {
    fail_load(result, *cubin_, device);
  }
  check(cu.cuLibraryGetKernel(&kernel_, library, cubin_->symbol.c_str()), "cuLibraryGetKernel");
  CUdevice handle = 0;
  check(cu.cuDeviceGet(&handle, device_id), "cuDeviceGet");
  if (dynamic_shared_bytes > 0) {
    check(
        cu.cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, dynamic_shared_bytes, kernel_, handle),
        "cuKernelSetAttribute");
  }
  // The driver loads lazily, at the first launch, which a stream capture would not survive: load now.
  CUfunction function = nullptr;
  check(cu.cuKernelGetFunction(&function, kernel_), "cuKernelGetFunction");
  if (cu.cuFuncLoad != nullptr) check(cu.cuFuncLoad(function), "cuFuncLoad");
  size_t offset = 0;
  if (cu.cuKernelGetParamInfo != nullptr) {
    check(cu.cuKernelGetParamInfo(kernel_, 0, &offset, &params_bytes_), "cuKernelGetParamInfo");
  }
}

void LoadedKernel::launch(const Blocks& blocks, const void* params, size_t params_bytes, void* stream) const {
  if (params_bytes_ != 0 && params_bytes_ != params_bytes) {
    throw core::Error(core::ErrorCode::internal,
                      message(cubin_->symbol, " takes ", params_bytes_, " bytes of parameters, given ", params_bytes));
  }
  const LaunchConfig config(blocks, dynamic_shared_bytes_, stream);
  void* parameters[] = {const_cast<void*>(params)};
  // The driver takes a CUkernel where it takes a function, and finds that of the current context.
  const auto function = reinterpret_cast<CUfunction>(kernel_);
  check(driver()->cuLaunchKernelEx(&config.config, function, static_cast<void**>(parameters), nullptr),
        "cuLaunchKernelEx");
}

std::shared_ptr<const LoadedKernel> load(const Program& program, int device_id, int dynamic_shared_bytes) {
  using Key = std::tuple<Program, int, int>;
  static std::mutex& mutex = *new std::mutex;
  static auto& kernels = *new std::map<Key, std::shared_ptr<const LoadedKernel>>;

  // First: where CUDA does not work, as in a forked child, this says so.
  const CurrentDevice current(device_id);
  const Key key(program, device_id, dynamic_shared_bytes);
  {
    const std::lock_guard lock(mutex);
    const auto found = kernels.find(key);
    if (found != kernels.end()) return found->second;
  }
  // The lock is free meanwhile, because compiling takes seconds and other kernels should not wait.
  const DeviceInfo& device = device_info(device_id);
  if (const std::string problem = device_problem(device); !problem.empty()) {
    throw core::Error(core::ErrorCode::unsupported, problem);
  }
  std::shared_ptr<const Cubin> cubin = find_or_compile(program, device.arch);
  const std::lock_guard lock(mutex);
  std::shared_ptr<const LoadedKernel>& kernel = kernels[key];
  if (kernel == nullptr)
    kernel = std::make_shared<const LoadedKernel>(std::move(cubin), device_id, dynamic_shared_bytes);
  return kernel;
}

}  // namespace tessella::cuda
