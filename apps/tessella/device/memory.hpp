// Memory where a command runs, written and read from the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "device/gpu.hpp"
#include "device/placement.hpp"

namespace tessella::cli {

// What may be allocated there: on the CPU what Linux would give without swapping, page cache included.
double available_memory(const Placement& placement);
// What a measurement may take of it: a GPU's is the process's own, a CPU's serves others too.
double usable_memory(const Placement& placement);

// All functions return when their work is done.
class Memory {
 public:
  Memory(const Placement& placement, size_t bytes);

  std::byte* data() const { return gpu_ != nullptr ? gpu_memory_.data() : host_.get(); }
  // A dense tensor that begins at an offset.
  tessella_tensor tensor(size_t offset, tessella_dtype dtype, std::initializer_list<int64_t> shape) const;

  void write(size_t offset, const void* from, size_t bytes) const;
  void fill(size_t offset, uint8_t byte, size_t bytes) const;
  // The first `have` bytes, again and again up to `bytes`.
  void repeat(size_t have, size_t bytes) const;
  void read(void* to, size_t offset, size_t bytes) const;

 private:
  struct FreeHost {
    void operator()(std::byte* data) const;
  };
  const Gpu* gpu_ = nullptr;
  GpuMemory gpu_memory_;
  std::unique_ptr<std::byte, FreeHost> host_;
};

}  // namespace tessella::cli
