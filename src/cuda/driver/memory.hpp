// Memory of GPUs as core::Backend offers it; what the functions promise is said there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/device.hpp"

namespace tessella::cuda {

bool has_device_memory();
core::Device device_at(const void* pointer);
std::string device_problem(int32_t id);
std::string device_name(int32_t id);

void* allocate_async(core::Device device, size_t bytes, void* stream);
void free_async(core::Device device, void* data, void* stream) noexcept;
void zero_async(core::Device device, void* data, size_t bytes, void* stream);

// nullptr during a capture, for more streams than have one, and in drivers before CUDA 12.0.
inline constexpr size_t kStreamStateBytes = 4096;
void* stream_state(core::Device device, void* stream);

void copy_from_host(core::Device device, void* to, const void* from, size_t bytes, void* stream);
void copy_to_host(core::Device device, void* to, const void* from, size_t bytes, void* stream);
void synchronize(core::Device device);

}  // namespace tessella::cuda
