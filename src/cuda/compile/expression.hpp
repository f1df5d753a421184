// A kernel's name expression for the compiler: an instance of a template whose argument is a config.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/message.hpp"
#include "cuda/compile/members.hpp"
#include "portable/element.hpp"
#include "portable/score_config.hpp"

namespace tessella::cuda {

static_assert(type_name<portable::Elements>() == "Elements" && member_name<portable::Elements, 1>() == "kv",
              "this compiler spells names as others do");

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
  std::string all;
  visit_members(config, [&](std::string_view name, const auto& value) {
    all += core::message(all.empty() ? "{." : ", .", name, " = ", written(value));
  });
  return all + "}";
}

// "tessella::device::forward_sm80<tessella::portable::ForwardSm80Config{.score = {...}, .tile_q = 128}>"
template <class Config>
std::string expression(const char* kernel, const Config& config) {
  return core::message("tessella::device::", kernel, "<tessella::portable::", type_name<Config>(), written(config),
                       ">");
}

}  // namespace tessella::cuda
