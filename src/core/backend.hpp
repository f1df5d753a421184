// What a backend of GPUs offers the API layer, which includes nothing else of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "core/device.hpp"
#include "core/kernel.hpp"

namespace tessella::core {

using Progress = std::function<void(int num_done, int num_total, const std::string& string)>;

// Of the functions only stream_state may be null. What a backend that is not built cannot do throws Error(unsupported).
struct Backend {
  DeviceType device = DeviceType::cuda;  // the type of its devices

  // Best first. Made when first asked for.
  KernelTable (*kernels)() = nullptr;

  // False while no pointer of this process can be a device's. Costs nanoseconds, and opens nothing.
  bool (*has_memory)() = nullptr;
  // The device whose memory this is, or the CPU. A driver call where has_memory().
  Device (*device_at)(const void* pointer) = nullptr;
  // Why this process cannot use tensors of the device, in one sentence, or "".
  std::string (*device_problem)(int32_t id) = nullptr;

  // The model, as "NVIDIA H200".
  std::string (*device_name)(int32_t id) = nullptr;

  // Memory in the order of the stream, of the device's pool. Throws Error(out_of_memory).
  void* (*allocate)(Device device, size_t bytes, void* stream) = nullptr;
  void (*free)(Device device, void* data, void* stream) noexcept = nullptr;
  void (*zero)(Device device, void* data, size_t bytes, void* stream) = nullptr;

  // The state of runs in a stream: stream_state_bytes, zeroed once and left zero by every run. Each stream has its own
  // until the process ends, so plain calls allocate nothing. Returns nullptr during a capture (its replays may run at
  // the same time as the stream's other work) and for a stream that has none. 0 bytes: no stream has one, and the
  // function may be null.
  size_t stream_state_bytes = 0;
  void* (*stream_state)(Device device, void* stream) = nullptr;

  // Returns when the bytes have been read.
  void (*copy_from_host)(Device device, void* to, const void* from, size_t bytes, void* stream) = nullptr;
  // Returns when the bytes are there, after all that was queued on the stream.
  void (*copy_to_host)(Device device, void* to, const void* from, size_t bytes, void* stream) = nullptr;
  // Waits for every stream of the device.
  void (*synchronize)(Device device) = nullptr;

  // The backend and what it finds on this machine, as lines "name: value".
  std::string (*info_lines)() = nullptr;
  // Compiles kernels before they are needed and keeps them, for targets ("sm_90,sm_80"; "" = this machine's devices, or
  // all that a build may carry without one) and one kernel of the table ("" = all). Needs no device. Throws
  // Error(invalid_argument) for an unknown target or kernel, Error(io) where they cannot be kept, Error(compile).
  void (*prebuild)(const std::string& targets, const std::string& kernel, const Progress& progress) = nullptr;
};

// Whose memory is whose, over all backends.
struct Devices {
  // False while no pointer of this process can be a GPU's. Costs nanoseconds.
  bool (*have_memory)() = nullptr;
  // The device whose memory this is, or the CPU.
  Device (*at)(const void* pointer) = nullptr;
  // Why this process cannot use tensors of the device, which is not the CPU; or "".
  std::string (*problem)(Device device) = nullptr;
};

}  // namespace tessella::core
