// The one file of the API layer that names a backend.
#include "api/backends.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "cpu/kernels.hpp"
#include "cuda/backend.hpp"
#include "process/once.hpp"
#include "reference/kernels.hpp"

namespace tessella::api {

std::span<const core::KernelTable> kernel_tables() {
  return process::once([] {
    std::vector<core::KernelTable> tables;
    for (const core::Backend* gpu : gpu_backends()) tables.push_back(gpu->kernels());
    tables.push_back(cpu::cpu_kernels());
    tables.push_back(reference::reference_kernels());
    return tables;
  });
}

std::span<const core::Backend* const> gpu_backends() {
  return process::once([] { return std::array{&cuda::backend()}; });
}

const core::Backend& backend_of(core::Device device) {
  return **std::ranges::find(gpu_backends(), device.type, &core::Backend::device);
}

namespace {

bool have_memory() {
  return std::ranges::any_of(gpu_backends(), [](const core::Backend* gpu) { return gpu->has_memory(); });
}

core::Device device_at(const void* pointer) {
  for (const core::Backend* gpu : gpu_backends()) {
    if (!gpu->has_memory()) continue;
    if (const core::Device device = gpu->device_at(pointer); device.type != core::DeviceType::cpu) return device;
  }
  return {};
}

}  // namespace

const core::Devices& devices() {
  static constexpr core::Devices kDevices{
      have_memory, device_at, [](core::Device device) { return backend_of(device).device_problem(device.id); }};
  return kDevices;
}

}  // namespace tessella::api
