#include "cuda/backend.hpp"

#include "cuda/driver/memory.hpp"
#include "cuda/info.hpp"
#include "cuda/kernels.hpp"
#include "cuda/prebuild.hpp"

namespace tessella::cuda {
namespace {

constexpr core::Backend kBackend{
    .device = core::DeviceType::cuda,
    .kernels = cuda_kernels,
    .has_memory = has_device_memory,
    .device_at = device_at,
    .device_problem = device_problem,
    .device_name = device_name,
    .allocate = allocate_async,
    .free = free_async,
    .zero = zero_async,
    .stream_state_bytes = kStreamStateBytes,
    .stream_state = stream_state,
    .copy_from_host = copy_from_host,
    .copy_to_host = copy_to_host,
    .synchronize = synchronize,
    .info_lines = info_lines,
    .prebuild = prebuild,
};

}  // namespace

const core::Backend& backend() { return kBackend; }

}  // namespace tessella::cuda
