// The GPUs of this process, and which of them a thread or a pointer belongs to.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/arguments.hpp"
#include "core/message.hpp"
#include "cuda/driver/driver_types.hpp"

namespace tessella::cuda {

struct DeviceInfo {
  int id = 0;
  std::string name;
  int arch = 0;  // compute capability, major * 10 + minor
  int num_sms = 0;
  int shared_bytes_per_block = 0;  // with opt-in
  int shared_bytes_per_sm = 0;
  int registers_per_sm = 0;
  int64_t l2_bytes = 0;
  int64_t memory_bytes = 0;
};

// 0 without a driver.
int device_count();

// Read once per process. Error(device) without a driver, Error(invalid_argument) for an id that is none.
const DeviceInfo& device_info(int id);

// Why no kernel of this library runs on such a GPU, in one sentence, or "".
std::string device_problem(const DeviceInfo& device);

// Why a kernel whose blocks take every multiprocessor does not run a call that asks for num_sms of them (0: all), or
// "".
inline std::string takes_all_sms(int32_t num_sms, const DeviceInfo& device) {
  if (num_sms == 0 || num_sms >= device.num_sms) return "";
  return core::message("leaves no multiprocessor free, and num_sms is ", num_sms, " of ", device.num_sms);
}

// The GPU whose memory a pointer is; nothing for host memory, pinned and registered memory included. Managed memory is
// the GPU's it was made for. Never opens the driver: a process that has not used CUDA has no such pointer.
std::optional<core::Device> device_of(const void* pointer);

// Makes a device current in the calling thread for the object's lifetime. A current context of that device (PyTorch's
// primary one, or the caller's own) stays; otherwise it takes the primary context, which all libraries use.
class CurrentDevice {
 public:
  explicit CurrentDevice(int id);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  bool pushed_ = false;
};

}  // namespace tessella::cuda
