// The backends of the library: what they compute, and whose memory is whose.
#pragma once

#include <span>

#include "core/backend.hpp"

namespace tessella::api {

// Tables of every backend, in the order of choice.
std::span<const core::KernelTable> kernel_tables();

// Those of GPUs, in the order of choice.
std::span<const core::Backend* const> gpu_backends();

// Of a device that is not the CPU: each type of them has one.
const core::Backend& backend_of(core::Device device);

// Whose memory is whose, for rooms that read calls.
const core::Devices& devices();

}  // namespace tessella::api
