#include "device/gpu.hpp"

#include <dlfcn.h>

#include <map>
#include <mutex>
#include <string>
#include <tessella/error.hpp>

namespace tessella::cli {

// The driver's interface as far as it is used here; names, values and versions are cuda.h's.
struct DriverFunctions {
  int (*init)(unsigned);
  int (*device_get)(int*, int);
  int (*device_get_count)(int*);
  int (*error_string)(int, const char**);
  int (*primary_context)(void**, int);
  int (*set_current)(void*);
  int (*alloc)(unsigned long long*, size_t);
  int (*free)(unsigned long long);
  int (*fill)(unsigned long long, unsigned char, size_t, void*);
  int (*to_gpu)(unsigned long long, const void*, size_t, void*);
  int (*to_host)(void*, unsigned long long, size_t, void*);
  int (*stream_create)(void**, unsigned);
  int (*stream_destroy)(void*);
  int (*stream_synchronize)(void*);
  int (*event_create)(void**, unsigned);
  int (*event_destroy)(void*);
  int (*event_record)(void*, void*);
  int (*event_synchronize)(void*);
  int (*event_elapsed)(float*, void*, void*);
};

namespace {

constexpr int kOutOfMemory = 2;
constexpr unsigned kNonBlocking = 1;

[[noreturn]] void fail(const std::string& text, ErrorCode code = ErrorCode::device) { throw Error(code, text.c_str()); }

DriverFunctions open_driver() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) fail("no GPU here: libcuda.so.1, the NVIDIA driver, was not found");
  DriverFunctions cu{};
  const auto take = [&](auto& function, const char* name) {
    void* address = dlsym(library, name);
    if (address == nullptr) fail(std::string("the NVIDIA driver lacks ") + name);
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
  };
  take(cu.init, "cuInit");
  take(cu.device_get, "cuDeviceGet");
  take(cu.device_get_count, "cuDeviceGetCount");
  take(cu.error_string, "cuGetErrorString");
  take(cu.primary_context, "cuDevicePrimaryCtxRetain");
  take(cu.set_current, "cuCtxSetCurrent");
  take(cu.alloc, "cuMemAlloc_v2");
  take(cu.free, "cuMemFree_v2");
  take(cu.fill, "cuMemsetD8Async");
  take(cu.to_gpu, "cuMemcpyHtoDAsync_v2");
  take(cu.to_host, "cuMemcpyDtoHAsync_v2");
  take(cu.stream_create, "cuStreamCreate");
  take(cu.stream_destroy, "cuStreamDestroy_v2");
  take(cu.stream_synchronize, "cuStreamSynchronize");
  take(cu.event_create, "cuEventCreate");
  take(cu.event_destroy, "cuEventDestroy_v2");
  take(cu.event_record, "cuEventRecord");
  take(cu.event_synchronize, "cuEventSynchronize");
  take(cu.event_elapsed, "cuEventElapsedTime");
  if (const int result = cu.init(0); result != 0) {
    fail("no GPU here: the NVIDIA driver does not start, error " + std::to_string(result));
  }
  return cu;
}

const DriverFunctions& driver() {
  static const DriverFunctions kDriver = open_driver();
  return kDriver;
}

void check(int result, const char* what) {
  if (result == 0) return;
  const char* text = nullptr;
  if (driver().error_string(result, &text) != 0) text = "unknown error";
  fail(std::string(what) + ": " + text, result == kOutOfMemory ? ErrorCode::out_of_memory : ErrorCode::device);
}

unsigned long long address(const void* data) { return reinterpret_cast<unsigned long long>(data); }

}  // namespace

const Gpu& Gpu::open(int32_t id) {
  static auto& gpus = *new std::map<int32_t, const Gpu*>;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const Gpu*& gpu = gpus[id];
  if (gpu == nullptr) gpu = new Gpu(id);
  return *gpu;
}

Gpu::Gpu(int32_t id) : id_(id) {
  int count = 0, device = 0;
  check(driver().device_get_count(&count), "cuDeviceGetCount");
  if (id < 0 || id >= count) {
    fail("no GPU cuda:" + std::to_string(id) + " here: this process sees " + std::to_string(count),
         ErrorCode::invalid_argument);
  }
  check(driver().device_get(&device, id), "cuDeviceGet");
  check(driver().primary_context(&context_, device), "cuDevicePrimaryCtxRetain");
}

const DriverFunctions& Gpu::current() const {
  check(driver().set_current(context_), "cuCtxSetCurrent");
  return driver();
}

void* Gpu::allocate(size_t bytes) const {
  unsigned long long data = 0;
  check(current().alloc(&data, bytes == 0 ? 1 : bytes), "cuMemAlloc");
  return reinterpret_cast<void*>(data);
}
// A failure here is that of the work before it, which the next call reports.
void Gpu::release(void* data) const noexcept {
  driver().set_current(context_);
  driver().free(address(data));
}
void Gpu::destroy_stream(void* stream) const noexcept {
  driver().set_current(context_);
  driver().stream_destroy(stream);
}
void Gpu::destroy_event(void* event) const noexcept {
  driver().set_current(context_);
  driver().event_destroy(event);
}

void* Gpu::make_stream() const {
  void* stream = nullptr;
  check(current().stream_create(&stream, kNonBlocking), "cuStreamCreate");
  return stream;
}
void Gpu::fill(void* data, uint8_t byte, size_t bytes, void* stream) const {
  if (bytes != 0) check(current().fill(address(data), byte, bytes, stream), "cuMemsetD8Async");
}
void Gpu::copy_to_gpu(void* to, const void* from, size_t bytes, void* stream) const {
  if (bytes != 0) check(current().to_gpu(address(to), from, bytes, stream), "cuMemcpyHtoDAsync");
}
void Gpu::copy_to_host(void* to, const void* from, size_t bytes, void* stream) const {
  if (bytes != 0) check(current().to_host(to, address(from), bytes, stream), "cuMemcpyDtoHAsync");
  synchronize(stream);
}
void Gpu::synchronize(void* stream) const { check(current().stream_synchronize(stream), "cuStreamSynchronize"); }

void* Gpu::make_event() const {
  void* event = nullptr;
  check(current().event_create(&event, 0), "cuEventCreate");
  return event;
}
void Gpu::record(void* event, void* stream) const { check(current().event_record(event, stream), "cuEventRecord"); }
double Gpu::seconds_between(void* first, void* second) const {
  float milliseconds = 0;
  check(current().event_synchronize(second), "cuEventSynchronize");
  check(driver().event_elapsed(&milliseconds, first, second), "cuEventElapsedTime");
  return static_cast<double>(milliseconds) * 1e-3;
}

}  // namespace tessella::cli
