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
  int (*device_get_attribute)(int*, int, int);
  int (*memory_info)(size_t*, size_t*);
  int (*on_gpu)(unsigned long long, unsigned long long, size_t, void*);
  int (*capture_begin)(void*, int);
  int (*capture_end)(void*, void**);
  int (*graph_instantiate)(void**, void*, unsigned long long);
  int (*graph_destroy)(void*);
  int (*graph_launch)(void*, void*);
  int (*graph_exec_destroy)(void*);
  int (*module_load)(void**, const void*);
  int (*module_function)(void**, void*, const char*);
  int (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
};

namespace {

constexpr int kOutOfMemory = 2;
constexpr unsigned kNonBlocking = 1;
constexpr int kMultiprocessorCount = 16;  // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
constexpr int kCaptureRelaxed = 2;        // CU_STREAM_CAPTURE_MODE_RELAXED: other calls of this thread are allowed

[[noreturn]] void fail(const std::string& string, ErrorCode code = ErrorCode::device) {
  throw Error(code, string.c_str());
}

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
  take(cu.device_get_attribute, "cuDeviceGetAttribute");
  take(cu.memory_info, "cuMemGetInfo_v2");
  take(cu.on_gpu, "cuMemcpyDtoDAsync_v2");
  take(cu.capture_begin, "cuStreamBeginCapture_v2");
  take(cu.capture_end, "cuStreamEndCapture");
  take(cu.graph_instantiate, "cuGraphInstantiateWithFlags");
  take(cu.graph_destroy, "cuGraphDestroy");
  take(cu.graph_launch, "cuGraphLaunch");
  take(cu.graph_exec_destroy, "cuGraphExecDestroy");
  take(cu.module_load, "cuModuleLoadData");
  take(cu.module_function, "cuModuleGetFunction");
  take(cu.launch, "cuLaunchKernel");
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
  const char* string = nullptr;
  if (driver().error_string(result, &string) != 0) string = "unknown error";
  fail(std::string(what) + ": " + string, result == kOutOfMemory ? ErrorCode::out_of_memory : ErrorCode::device);
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

int32_t Gpu::num_multiprocessors() const {
  int device = 0, count = 0;
  check(driver().device_get(&device, id_), "cuDeviceGet");
  check(driver().device_get_attribute(&count, kMultiprocessorCount, device), "cuDeviceGetAttribute");
  return count;
}
size_t Gpu::free_bytes() const {
  size_t free = 0, total = 0;
  check(current().memory_info(&free, &total), "cuMemGetInfo");
  return free;
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
void Gpu::copy_on_gpu(void* to, const void* from, size_t bytes, void* stream) const {
  if (bytes != 0) check(current().on_gpu(address(to), address(from), bytes, stream), "cuMemcpyDtoDAsync");
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

void* Gpu::make_graph(void* stream, const std::function<void()>& record) const {
  check(current().capture_begin(stream, kCaptureRelaxed), "cuStreamBeginCapture");
  void* graph = nullptr;
  try {
    record();
  } catch (...) {
    driver().capture_end(stream, &graph);
    if (graph != nullptr) driver().graph_destroy(graph);
    throw;
  }
  check(driver().capture_end(stream, &graph), "cuStreamEndCapture");
  void* executable = nullptr;
  const int result = driver().graph_instantiate(&executable, graph, 0);
  driver().graph_destroy(graph);
  check(result, "cuGraphInstantiate");
  return executable;
}
void Gpu::destroy_graph(void* graph) const noexcept {
  driver().set_current(context_);
  driver().graph_exec_destroy(graph);
}
void Gpu::launch_graph(void* graph, void* stream) const {
  check(current().graph_launch(graph, stream), "cuGraphLaunch");
}

void* Gpu::load_kernel(const char* ptx, const char* name) const {
  void *module = nullptr, *kernel = nullptr;
  check(current().module_load(&module, ptx), "cuModuleLoadData");
  check(driver().module_function(&kernel, module, name), "cuModuleGetFunction");
  return kernel;
}
void Gpu::launch_kernel(void* kernel, unsigned blocks, unsigned threads, void* stream, void** arguments) const {
  check(current().launch(kernel, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, nullptr), "cuLaunchKernel");
}

}  // namespace tessella::cli
