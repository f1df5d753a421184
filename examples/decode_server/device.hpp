// Memory that both the program and attention's device see: the host's, or managed memory of the first GPU.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <memory_resource>
#include <new>
#include <stdexcept>
#include <string>

class Device : public std::pmr::memory_resource {
 public:
  explicit Device(bool is_gpu) {
    if (!is_gpu) return;
    driver_ = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver_ == nullptr) throw std::runtime_error("no GPU here: libcuda.so.1, the NVIDIA driver, was not found");
    int device = 0;
    void* context = nullptr;
    call("cuInit", 0U);
    call("cuDeviceGet", &device, 0);
    call("cuDevicePrimaryCtxRetain", &context, device);
    call("cuCtxSetCurrent", context);
  }
  bool is_gpu() const { return driver_ != nullptr; }
  // Until all that was queued is done.
  void wait() const {
    if (is_gpu()) call("cuCtxSynchronize");
  }

 private:
  template <typename... Arguments>
  int status_of(const char* name, Arguments... arguments) const {
    const auto function = reinterpret_cast<int (*)(Arguments...)>(dlsym(driver_, name));
    return function == nullptr ? -1 : function(arguments...);
  }
  template <typename... Arguments>
  void call(const char* name, Arguments... arguments) const {
    const int status = status_of(name, arguments...);
    if (status != 0) throw std::runtime_error(std::string(name) + ": error " + std::to_string(status));
  }
  void* do_allocate(size_t bytes, size_t alignment) override {
    if (!is_gpu()) return ::operator new(bytes, std::align_val_t(alignment));
    unsigned long long address = 0;
    call("cuMemAllocManaged", &address, bytes, 1U);  // CU_MEM_ATTACH_GLOBAL
    return reinterpret_cast<void*>(address);
  }
  void do_deallocate(void* data, size_t, size_t alignment) override {
    if (is_gpu()) {
      status_of("cuMemFree_v2", reinterpret_cast<unsigned long long>(data));
    } else {
      ::operator delete(data, std::align_val_t(alignment));
    }
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }

  void* driver_ = nullptr;
};
