// Device memory as the API layer needs it. In a build without the CUDA backend no pointer is a GPU's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/device.hpp"

namespace tessella::cuda {

// False while no pointer of this process can be a GPU's. Costs nanoseconds, and opens nothing.
bool has_device_memory();
// The device whose memory this is, or the CPU. A driver call where has_device_memory().
core::Device device_at(const void* pointer);

// Why this process cannot use tensors of the GPU, in one sentence, or "".
std::string device_problem(int32_t id);

// Stream-ordered memory of the device's pool. Throws Error(out_of_memory).
void* allocate_async(core::Device device, size_t bytes, void* stream);
void free_async(core::Device device, void* data, void* stream) noexcept;
void zero_async(core::Device device, void* data, size_t bytes, void* stream);

// The state of runs in a stream: kStreamStateBytes, zeroed once and left zero by every run. Each stream has its own
// until the process ends, so plain calls allocate nothing. nullptr during a capture (its replays may run at the same
// time as the stream's other work), for more streams than have one, and in drivers before CUDA 12.0.
inline constexpr size_t kStreamStateBytes = 4096;
void* stream_state(core::Device device, void* stream);

// Returns when the bytes are there, after all that was queued on the stream.
void copy_to_host(core::Device device, void* to, const void* from, size_t bytes, void* stream);
// Waits for every stream of the device.
void synchronize(core::Device device);

}  // namespace tessella::cuda
