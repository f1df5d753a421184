// A call on a GPU as torch would make it: on its current stream, with its memory.
#pragma once

#include <tessella/tessella.h>

#include <utility>
#include <vector>

#include "abi.hpp"

namespace tessella::operators {

// torch's caching allocator for workspaces: tensors of bytes, on the stream and in the graph's pool that torch is on.
// Each lives until it is freed, which the library does before a call returns.
struct Workspaces {
  const Abi& abi;
  int32_t device_index;
  std::vector<std::pair<void*, Tensor*>> tensors = {};

  static void* alloc(size_t bytes, size_t, void*, void* user) {
    auto& self = *static_cast<Workspaces*>(user);
    const auto size = static_cast<int64_t>(bytes);
    const int64_t stride = 1;
    Tensor* tensor = nullptr;
    void* data = nullptr;
    if (self.abi.empty_strided(1, &size, &stride, self.abi.dtypes[TESSELLA_U8], self.abi.cuda, self.device_index,
                               &tensor) != 0) {
      return nullptr;  // out_of_memory
    }
    self.abi.get_data_ptr(tensor, &data);
    self.tensors.emplace_back(data, tensor);
    return data;
  }

  static void free(void* data, size_t, void*, void* user) {
    auto& self = *static_cast<Workspaces*>(user);
    for (auto& [of_tensor, tensor] : self.tensors) {
      if (of_tensor == data) {
        self.abi.delete_tensor(tensor);
        of_tensor = nullptr;
      }
    }
  }
};

// The device is current as long as this lives.
class OnDevice {
 public:
  OnDevice(const Abi& abi, int32_t device_index) : abi_(abi) {
    check(abi.create_cuda_guard(device_index, &guard_), "change the device");
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { abi_.delete_cuda_guard(guard_); }

 private:
  const Abi& abi_;
  CudaGuard* guard_ = nullptr;
};

// run(stream), whose options have torch's allocator. Afterwards its address there is dead.
template <typename Run>
tessella_status on_gpu(const Abi& abi, int32_t device_index, tessella_attention_options& options, const Run& run) {
  const OnDevice guard(abi, device_index);
  void* stream = nullptr;
  check(abi.current_cuda_stream(device_index, &stream), "tell its stream");
  Workspaces workspaces{abi, device_index};
  const tessella_allocator allocator{Workspaces::alloc, Workspaces::free, &workspaces};
  options.allocator = &allocator;
  return run(stream);
}

}  // namespace tessella::operators
