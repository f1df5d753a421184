#include "cuda/driver/memory.hpp"

#include <map>
#include <mutex>

#include "core/message.hpp"
#include "cuda/driver/driver.hpp"
#include "cuda/driver/gpus.hpp"

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

std::string device_name(int32_t id) { return device_info(id).name; }

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

void* stream_state(core::Device device, void* stream) {
  using Key = std::pair<unsigned long long, unsigned long long>;  // context, stream; ids are never used again
  constexpr size_t kStreams = 1024;
  static std::mutex& mutex = *new std::mutex;
  static auto& states = *new std::map<Key, void*>;

  const Driver& cu = required_driver();
  if (cu.cuStreamGetId == nullptr || cu.cuCtxGetId == nullptr) return nullptr;
  const CurrentDevice current(device.id);
  CUcontext context = nullptr;
  Key key;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  check(cu.cuCtxGetCurrent(&context), "cuCtxGetCurrent");
  check(cu.cuCtxGetId(context, &key.first), "cuCtxGetId");
  check(cu.cuStreamIsCapturing(handle(stream), &status), "cuStreamIsCapturing");
  if (status != CU_STREAM_CAPTURE_STATUS_NONE) return nullptr;
  check(cu.cuStreamGetId(handle(stream), &key.second), "cuStreamGetId");
  const std::unique_lock lock(mutex, std::try_to_lock);
  if (!lock) return nullptr;
  if (const auto found = states.find(key); found != states.end()) return found->second;
  if (states.size() >= kStreams) return nullptr;
  // In the stream's order: a plain allocation would break another thread's capture.
  void* state = allocate_async(device, kStreamStateBytes, stream);
  zero_async(device, state, kStreamStateBytes, stream);
  states.emplace(key, state);
  return state;
}

void copy_from_host(core::Device device, void* to, const void* from, size_t bytes, void* stream) {
  const Driver& cu = required_driver();
  const CurrentDevice current(device.id);
  check(cu.cuMemcpyHtoDAsync(address(to), from, bytes, handle(stream)), "cuMemcpyHtoDAsync");
  check(cu.cuStreamSynchronize(handle(stream)), "cuStreamSynchronize");
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
