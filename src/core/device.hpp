// Devices that tensors are on.
#pragma once

#include <cstdint>
#include <string>

namespace tessella::core {

enum class DeviceType : int32_t { cpu = 1, cuda = 2 };  // DLPack's numbers

struct Device {
  DeviceType type = DeviceType::cpu;
  int32_t id = 0;
  bool operator==(const Device&) const = default;
};

constexpr const char* name(DeviceType type) { return type == DeviceType::cpu ? "cpu" : "cuda"; }
inline std::string name(Device device) {
  return device.type == DeviceType::cpu ? "cpu" : "cuda:" + std::to_string(device.id);
}
// For messages such as "q is on the CPU".
inline std::string location(Device device) { return device.type == DeviceType::cpu ? "the CPU" : name(device); }

}  // namespace tessella::core
