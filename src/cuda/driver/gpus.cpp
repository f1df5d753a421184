#include "cuda/driver/gpus.hpp"

#include <dlfcn.h>

#include <array>
#include <memory>
#include <mutex>
#include <vector>

#include "core/error.hpp"
#include "core/message.hpp"
#include "cuda/driver/driver.hpp"
#include "process/once.hpp"

namespace tessella::cuda {
namespace {

using core::message;

constexpr int kOldestArch = 80;

// A device and its primary context, retained at first use and for good: releasing it could destroy it under other
// libraries that took it without retaining.
struct Device {
  DeviceInfo info;
  CUdevice handle = 0;
  std::once_flag once;
  CUcontext primary = nullptr;
};

std::unique_ptr<Device> read_device(const Driver& cu, int id) {
  auto device = std::make_unique<Device>();
  check(cu.cuDeviceGet(&device->handle, id), "cuDeviceGet");
  const auto attribute = [&](CUdevice_attribute which) {
    int value = 0;
    check(cu.cuDeviceGetAttribute(&value, which, device->handle), "cuDeviceGetAttribute");
    return value;
  };
  std::array<char, 256> name{};
  check(cu.cuDeviceGetName(name.data(), static_cast<int>(name.size()) - 1, device->handle), "cuDeviceGetName");
  size_t memory_bytes = 0;
  check(cu.cuDeviceTotalMem(&memory_bytes, device->handle), "cuDeviceTotalMem");
  device->info = {.id = id,
                  .name = name.data(),
                  .arch = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) * 10 +
                          attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
                  .num_sms = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
                  .shared_bytes_per_block = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
                  .shared_bytes_per_sm = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
                  .registers_per_sm = attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR),
                  .l2_bytes = attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE),
                  .memory_bytes = static_cast<int64_t>(memory_bytes)};
  return device;
}

const std::vector<std::unique_ptr<Device>>& devices() {
  return process::once([] {
    const Driver& cu = required_driver();
    int count = 0;
    check(cu.cuDeviceGetCount(&count), "cuDeviceGetCount");
    std::vector<std::unique_ptr<Device>> read;
    read.reserve(static_cast<size_t>(count));
    for (int id = 0; id < count; ++id) read.push_back(read_device(cu, id));
    return read;
  });
}

Device& device_at(int id) {
  const auto& all = devices();
  if (id < 0 || id >= static_cast<int>(all.size())) {
    core::invalid(message("device_id is ", id, ", expected 0 to ", all.size() - 1, ": this process sees ", all.size(),
                          all.size() == 1 ? " GPU" : " GPUs"));
  }
  return *all[static_cast<size_t>(id)];
}

}  // namespace

int device_count() { return driver() == nullptr ? 0 : static_cast<int>(devices().size()); }

const DeviceInfo& device_info(int id) { return device_at(id).info; }

std::string device_problem(const DeviceInfo& device) {
  if (device.arch >= kOldestArch) return "";
  return message("GPU ", device.id, " (", device.name, ") has compute capability ", device.arch / 10, ".",
                 device.arch % 10, " (sm_", device.arch, "), expected 8.0 (sm_80, Ampere) or newer");
}

std::optional<core::Device> device_of(const void* pointer) {
  using GetAttributes = decltype(Driver::cuPointerGetAttributes);
  if (pointer == nullptr || !driver_is_loaded()) return std::nullopt;
  // Whoever opened the driver may not have initialised it; asking it directly does not do so either.
  const auto get_attributes = process::once([] {
    return reinterpret_cast<GetAttributes>(
        ::dlsym(::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), "cuPointerGetAttributes"));
  });
  if (get_attributes == nullptr) return std::nullopt;
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  unsigned memory_type = 0;
  int ordinal = 0;
  void* values[] = {&memory_type, &ordinal};
  if (get_attributes(2, attributes, values, reinterpret_cast<CUdeviceptr>(pointer)) != CUDA_SUCCESS) {
    return std::nullopt;  // not initialised: no pointer is a GPU's
  }
  if (memory_type != CU_MEMORYTYPE_DEVICE) return std::nullopt;
  return core::Device{core::DeviceType::cuda, ordinal};
}

CurrentDevice::CurrentDevice(int id) {
  const Driver& cu = required_driver();
  Device& device = device_at(id);
  CUcontext current = nullptr;
  check(cu.cuCtxGetCurrent(&current), "cuCtxGetCurrent");
  CUdevice of_current = 0;
  if (current != nullptr && cu.cuCtxGetDevice(&of_current) == CUDA_SUCCESS && of_current == device.handle) return;
  std::call_once(device.once, [&] {
    check(cu.cuDevicePrimaryCtxRetain(&device.primary, device.handle), "cuDevicePrimaryCtxRetain");
  });
  check(cu.cuCtxPushCurrent(device.primary), "cuCtxPushCurrent");
  pushed_ = true;
}

CurrentDevice::~CurrentDevice() {
  CUcontext popped = nullptr;
  if (pushed_) required_driver().cuCtxPopCurrent(&popped);
}

}  // namespace tessella::cuda
