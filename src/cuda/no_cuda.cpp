// A build without the CUDA backend: an empty table and no devices, so that callers hold no #ifdef.
#include "core/error.hpp"
#include "cuda/driver/memory.hpp"
#include "cuda/info.hpp"
#include "cuda/kernels.hpp"
#include "cuda/prebuild.hpp"

namespace tessella::cuda {

core::KernelTable cuda_kernels() { return {}; }

std::string info_lines() { return "CUDA: not in this build\n"; }
void prebuild(const std::string&, const std::string&, const Progress&) {
  core::unsupported("kernels build: this build has no CUDA backend");
}

bool has_device_memory() { return false; }
core::Device device_at(const void*) { return {}; }
std::string device_problem(int32_t) { return "this build has no CUDA backend"; }

// The API layer rejects every tensor that would need these.
void* allocate_async(core::Device device, size_t, void*) { core::unsupported(device_problem(device.id)); }
void free_async(core::Device, void*, void*) noexcept {}
void zero_async(core::Device device, void*, size_t, void*) { core::unsupported(device_problem(device.id)); }
void* stream_state(core::Device, void*) { return nullptr; }
void copy_to_host(core::Device device, void*, const void*, size_t, void*) {
  core::unsupported(device_problem(device.id));
}
void synchronize(core::Device device) { core::unsupported(device_problem(device.id)); }

}  // namespace tessella::cuda
