// The first GPU, by the CUDA driver; NVRTC compiles rows.cuh. Both are opened at run time: no toolkit is needed to
// build.
#include <dlfcn.h>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "device.hpp"
#include "rows_source.hpp"

namespace {

// A shared library whose functions are called by name, with arguments of exactly the types that they take.
class Library {
 public:
  Library(std::initializer_list<const char*> names, const std::string& what) {
    for (const char* name : names) {
      if (handle_ == nullptr) handle_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    if (handle_ == nullptr) throw std::runtime_error(what + " was not found");
  }
  template <typename... Arguments>
  int status(const char* name, Arguments... arguments) const {
    const auto function = reinterpret_cast<int (*)(Arguments...)>(dlsym(handle_, name));
    if (function == nullptr) throw std::runtime_error(std::string(name) + " was not found");
    return function(arguments...);
  }
  template <typename... Arguments>
  void call(const char* name, Arguments... arguments) const {
    const int result = status(name, arguments...);
    if (result != 0) throw std::runtime_error(std::string(name) + ": error " + std::to_string(result));
  }

 private:
  void* handle_ = nullptr;
};

using Address = unsigned long long;  // of a GPU's memory: CUdeviceptr
Address address_of(const void* data) { return reinterpret_cast<Address>(data); }

// TESSELLA_NVRTC, or what the dynamic linker or the toolkit's folder has; the library itself looks in more places.
Library open_nvrtc() {
  const std::string what = "NVRTC, which compiles kernels,";
  const char* const given = std::getenv("TESSELLA_NVRTC");
  if (given != nullptr && *given != '\0') return Library({given}, what);
  return Library({"libnvrtc.so.13", "libnvrtc.so.12", "/usr/local/cuda/lib64/libnvrtc.so"}, what);
}

// A cubin of rows.cuh for an architecture, as "sm_90".
std::vector<char> compiled(const std::string& architecture, const char* element) {
  const Library nvrtc = open_nvrtc();
  void* program = nullptr;
  nvrtc.call("nvrtcCreateProgram", &program, kRowsSource, "rows.cuh", 0, static_cast<const char**>(nullptr),
             static_cast<const char**>(nullptr));
  const std::string arch = "--gpu-architecture=" + architecture, define = std::string("-DELEMENT=") + element;
  const char* options[] = {arch.c_str(), define.c_str(), "--std=c++17"};
  size_t size = 0;
  if (nvrtc.status("nvrtcCompileProgram", program, 3, static_cast<const char**>(options)) != 0) {
    nvrtc.call("nvrtcGetProgramLogSize", program, &size);
    std::string log(size, '\0');
    nvrtc.call("nvrtcGetProgramLog", program, log.data());
    throw std::runtime_error(log);
  }
  nvrtc.call("nvrtcGetCUBINSize", program, &size);
  std::vector<char> cubin(size);
  nvrtc.call("nvrtcGetCUBIN", program, cubin.data());
  nvrtc.call("nvrtcDestroyProgram", &program);
  return cubin;
}

class GpuDevice : public Device {
 public:
  explicit GpuDevice(const char* element) {
    int device = 0, major = 0, minor = 0;
    void* context = nullptr;
    if (cu_.status("cuInit", 0U) != 0 || cu_.status("cuDeviceGet", &device, 0) != 0) {
      throw std::runtime_error("no GPU here: the driver has none");
    }
    cu_.call("cuDevicePrimaryCtxRetain", &context, device);
    cu_.call("cuCtxSetCurrent", context);
    cu_.call("cuDeviceGetAttribute", &major, 75, device);  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
    cu_.call("cuDeviceGetAttribute", &minor, 76, device);
    cu_.call("cuStreamCreate", &stream_, 1U);  // CU_STREAM_NON_BLOCKING
    const std::string architecture = "sm_" + std::to_string(10 * major + minor);
    const std::vector<char> cubin = compiled(architecture, element);
    void* module = nullptr;
    cu_.call("cuModuleLoadData", &module, static_cast<const void*>(cubin.data()));
    cu_.call("cuModuleGetFunction", &embedding_, module, "embedding");
    cu_.call("cuModuleGetFunction", &rms_norm_, module, "rms_norm");
    cu_.call("cuModuleGetFunction", &next_token_, module, "next_token");
  }
  tessella::Device id() const override { return {TESSELLA_CUDA, 0}; }
  void* stream() const override { return stream_; }
  Memory allocate(size_t bytes) override {
    Address address = 0;
    cu_.call("cuMemAlloc_v2", &address, bytes);
    const auto free = [this](std::byte* data) { cu_.status("cuMemFree_v2", address_of(data)); };
    Memory memory(reinterpret_cast<std::byte*>(address), free);
    cu_.call("cuMemsetD8Async", address, static_cast<unsigned char>(0), bytes, stream_);
    return memory;
  }
  void upload(void* to, const void* from, size_t bytes) override {
    cu_.call("cuMemcpyHtoDAsync_v2", address_of(to), from, bytes, stream_);
    wait();
  }
  void download(void* to, const void* from, size_t bytes) override {
    cu_.call("cuMemcpyDtoHAsync_v2", to, address_of(from), bytes, stream_);
    wait();
  }

  void run(const Embedding& step, int rows) override { launch(embedding_, 256, step, rows); }
  void run(const RmsNorm& step, int rows) override { launch(rms_norm_, 1024, step, rows); }
  void run(const NextToken& step, int rows) override { launch(next_token_, 1024, step, rows); }

  std::function<void()> repeated(std::function<void()> step) override {
    return [this, step = std::move(step), is_first = true, graph = static_cast<void*>(nullptr)]() mutable {
      if (std::exchange(is_first, false)) return step();
      if (graph == nullptr) graph = graph_of(step);
      cu_.call("cuGraphLaunch", graph, stream_);
    };
  }

 private:
  void wait() const { cu_.call("cuStreamSynchronize", stream_); }
  template <typename Step>
  void launch(void* kernel, unsigned threads, const Step& step, int rows) const {
    void* arguments[] = {const_cast<Step*>(&step)};
    cu_.call("cuLaunchKernel", kernel, static_cast<unsigned>(rows), 1U, 1U, threads, 1U, 1U, 0U, stream_,
             static_cast<void**>(arguments), static_cast<void**>(nullptr));
  }
  // Kept to the end of the program.
  void* graph_of(const std::function<void()>& step) const {
    void *graph = nullptr, *instance = nullptr;
    cu_.call("cuStreamBeginCapture_v2", stream_, 2);  // CU_STREAM_CAPTURE_MODE_RELAXED
    step();
    cu_.call("cuStreamEndCapture", stream_, &graph);
    cu_.call("cuGraphInstantiateWithFlags", &instance, graph, 0ULL);
    return instance;
  }

  Library cu_{{"libcuda.so.1"}, "no GPU here: libcuda.so.1, the NVIDIA driver,"};
  void* stream_ = nullptr;
  void *embedding_ = nullptr, *rms_norm_ = nullptr, *next_token_ = nullptr;
};

}  // namespace

std::unique_ptr<Device> Device::gpu(tessella::DType dtype) {
  return std::make_unique<GpuDevice>(dtype == tessella::bf16 ? "BFloat16" : "float");
}
