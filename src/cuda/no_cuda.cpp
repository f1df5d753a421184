// A build without the CUDA backend: an empty table and no devices, so that callers hold no #ifdef.
#include "core/error.hpp"
#include "cuda/backend.hpp"

namespace tessella::cuda {
namespace {

constexpr const char* kProblem = "this build has no CUDA backend";

constexpr core::Backend kNoBackend{
    .device = core::DeviceType::cuda,
    .kernels = [] { return core::KernelTable(); },
    .has_memory = [] { return false; },
    .device_at = [](const void*) { return core::Device(); },
    .device_problem = [](int32_t) { return std::string(kProblem); },
    .device_name = [](int32_t) { return std::string(); },
    // The API layer rejects every tensor that would need these.
    .allocate = [](core::Device, size_t, void*) -> void* { core::unsupported(kProblem); },
    .free = [](core::Device, void*, void*) noexcept {},
    .zero = [](core::Device, void*, size_t, void*) { core::unsupported(kProblem); },
    .copy_from_host = [](core::Device, void*, const void*, size_t, void*) { core::unsupported(kProblem); },
    .copy_to_host = [](core::Device, void*, const void*, size_t, void*) { core::unsupported(kProblem); },
    .synchronize = [](core::Device) { core::unsupported(kProblem); },
    .info_lines = [] { return std::string("CUDA: not in this build\n"); },
    .prebuild = [](const std::string&, const std::string&,
                   const core::Progress&) { core::unsupported(std::string("kernels build: ") + kProblem); },
};

}  // namespace

const core::Backend& backend() { return kNoBackend; }

}  // namespace tessella::cuda
