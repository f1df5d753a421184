// A kernel's name expression for the compiler: an instance of a template whose argument is a config.
#pragma once

#include <cstdint>
#include <string>

#include "core/message.hpp"
#include "operations/attention/shape.hpp"
#include "portable/element.hpp"
#include "portable/score_config.hpp"

namespace tessella::cuda {

// Converts to any member's type.
struct AnyMember {
  template <class T>
  operator T() const;  // NOLINT(google-explicit-constructor)
};
template <class Config, class... Members>
consteval int num_members() {
  if constexpr (requires { Config{Members{}..., AnyMember{}}; }) {
    return num_members<Config, Members..., AnyMember>();
  } else {
    return sizeof...(Members);
  }
}
template <class Config>
consteval int num_fields() {
  int count = 0;
  fields(Config{}, [&](const char*, const auto&) { ++count; });
  return count;
}

inline std::string written(bool value) { return value ? "true" : "false"; }
inline std::string written(int32_t value) { return std::to_string(value); }
inline std::string written(portable::Element value) {
  return core::message("tessella::portable::Element::", name(value));
}
inline std::string written(portable::MaskLevel value) {
  return core::message("tessella::portable::MaskLevel::", value == portable::MaskLevel::bits ? "bits" : "band");
}
inline std::string written(portable::KeyScales value) {
  constexpr const char* kNames[] = {"none", "tile", "key"};
  return core::message("tessella::portable::KeyScales::", kNames[static_cast<int>(value)]);
}
// "{.tile_q = 128, .paged = false}"
template <class Config>
std::string written(const Config& config) {
  static_assert(num_fields<Config>() == num_members<Config>(), "fields() visits every member");
  std::string all;
  fields(config, [&](const char* name, const auto& value) {
    all += core::message(all.empty() ? "{." : ", .", name, " = ", written(value));
  });
  return all + "}";
}

// "tessella::device::forward_sm80<tessella::portable::ForwardSm80Config{.score = {...}, .tile_q = 128}>"
template <class Config>
std::string expression(const char* kernel, const char* config_type, const Config& config) {
  return core::message("tessella::device::", kernel, "<tessella::portable::", config_type, written(config), ">");
}

}  // namespace tessella::cuda
