#include "device/memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#include <string>

namespace tessella::cli {
namespace {

constexpr size_t kAlignment = 4096;

}  // namespace

double available_memory(const Placement& placement) {
  if (placement.gpu) return static_cast<double>(Gpu::open(*placement.gpu).free_bytes());
  std::ifstream file("/proc/meminfo");
  for (std::string name, rest; file >> name && std::getline(file, rest);) {
    if (name == "MemAvailable:") return std::stod(rest) * 1024;  // "   123 kB"
  }
  return static_cast<double>(::sysconf(_SC_AVPHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

double usable_memory(const Placement& placement) { return (placement.gpu ? 0.95 : 0.5) * available_memory(placement); }

void Memory::FreeHost::operator()(std::byte* data) const { std::free(data); }

Memory::Memory(const Placement& placement, size_t bytes) {
  if (placement.gpu) {
    gpu_ = &Gpu::open(*placement.gpu);
    gpu_memory_ = GpuMemory(*gpu_, bytes);
    return;
  }
  host_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, (bytes + kAlignment) / kAlignment * kAlignment)));
  if (host_ == nullptr) throw std::bad_alloc();
}

tessella_tensor Memory::tensor(size_t offset, tessella_dtype dtype, std::initializer_list<int64_t> shape) const {
  tessella_tensor tensor = {};
  tensor.data = data() + offset;
  tensor.dtype = dtype;
  tensor.ndim = static_cast<int32_t>(shape.size());
  std::ranges::copy(shape, tensor.shape);
  int64_t stride = 1;
  for (int axis = tensor.ndim - 1; axis >= 0; --axis) {
    tensor.strides[axis] = stride;
    stride *= tensor.shape[axis];
  }
  tensor.device_type = gpu_ != nullptr ? TESSELLA_CUDA : TESSELLA_CPU;
  tensor.device_id = gpu_ != nullptr ? gpu_->id() : 0;
  return tensor;
}

void Memory::write(size_t offset, const void* from, size_t bytes) const {
  if (bytes == 0) return;  // `from` may be null
  if (gpu_ == nullptr) {
    std::memcpy(data() + offset, from, bytes);
    return;
  }
  gpu_->copy_to_gpu(data() + offset, from, bytes, nullptr);
  gpu_->synchronize(nullptr);
}

void Memory::fill(size_t offset, uint8_t byte, size_t bytes) const {
  if (gpu_ == nullptr) {
    std::memset(data() + offset, byte, bytes);
    return;
  }
  gpu_->fill(data() + offset, byte, bytes, nullptr);
  gpu_->synchronize(nullptr);
}

void Memory::repeat(size_t have, size_t bytes) const {
  for (size_t done = have; done < bytes;) {
    const size_t next = std::min(done / have * have, bytes - done);  // whole repeats of what is there
    if (gpu_ == nullptr) {
      std::memcpy(data() + done, data(), next);
    } else {
      gpu_->copy_on_gpu(data() + done, data(), next, nullptr);
    }
    done += next;
  }
  if (gpu_ != nullptr) gpu_->synchronize(nullptr);
}

void Memory::read(void* to, size_t offset, size_t bytes) const {
  if (gpu_ == nullptr) {
    std::memcpy(to, data() + offset, bytes);
    return;
  }
  gpu_->copy_to_host(to, data() + offset, bytes, nullptr);
}

}  // namespace tessella::cli
