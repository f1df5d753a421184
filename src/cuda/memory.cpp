#include "cuda/memory.hpp"

#include "core/message.hpp"
#include "cuda/device.hpp"
#include "cuda/driver.hpp"

namespace tessella::cuda {
namespace {

CUdeviceptr address(const void* data) { return reinterpret_cast<CUdeviceptr>(data); }
CUstream handle(void* stream) { return static_cast<CUstream>(stream); }

}  // namespace

bool has_device_memory() { return driver_is_loaded(); }

core::Device device_at(const void* pointer) { return device_of(pointer).value_or(core::Device{}); }

std::string device_problem(int32_t id) {
  if (driver() == nullptr) return driver_problem();
  const int count = device_count();
  if (id >= 0 && id < count) return "";
  return core::message("this process sees ", count, count == 1 ? " GPU" : " GPUs");
}

void* allocate_async(core::Device device, size_t bytes, void* stream) {
  const CurrentDevice current(device.id);
  CUdeviceptr data = 0;
  check_allocation(required_driver().cuMemAllocAsync(&data, bytes, handle(stream)), "forward: workspace", bytes);
  return reinterpret_cast<void*>(data);
}

void free_async(core::Device device, void* data, void* stream) noexcept {
  // A failure here is one of the work before it, which the stream's next call reports; the destructor that asks for
  // this must not throw.
  try {
    const CurrentDevice current(device.id);
    required_driver().cuMemFreeAsync(address(data), handle(stream));
  } catch (const std::exception&) {
  }
}

void zero_async(core::Device device, void* data, size_t bytes, void* stream) {
  const CurrentDevice current(device.id);
  check(required_driver().cuMemsetD8Async(address(data), 0, bytes, handle(stream)), "cuMemsetD8Async");
}

void copy_to_host(core::Device device, void* to, const void* from, size_t bytes, void* stream) {
  const Driver& cu = required_driver();
  const CurrentDevice current(device.id);
  check(cu.cuMemcpyDtoHAsync(to, address(from), bytes, handle(stream)), "cuMemcpyDtoHAsync");
  check(cu.cuStreamSynchronize(handle(stream)), "cuStreamSynchronize");
}

void synchronize(core::Device device) {
  const CurrentDevice current(device.id);
  check(required_driver().cuCtxSynchronize(), "cuCtxSynchronize");
}

}  // namespace tessella::cuda
