// What a program is compiled for: sm_90, sm_90a, or compute_80 (PTX, which the driver compiles for any later GPU).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tessella::cuda {

struct Target {
  int arch = 80;               // compute capability, major * 10 + minor
  bool arch_specific = false;  // the suffix "a": uses what only this very architecture has
  bool ptx = false;
  bool operator==(const Target&) const = default;

  std::string name() const { return (ptx ? "compute_" : "sm_") + std::to_string(arch) + (arch_specific ? "a" : ""); }
};

inline std::optional<Target> parse_target(std::string_view text) {
  Target target;
  if (text.starts_with("sm_")) {
    text.remove_prefix(3);
  } else if (text.starts_with("compute_")) {
    text.remove_prefix(8);
    target.ptx = true;
  } else {
    return std::nullopt;
  }
  if (text.ends_with('a')) {
    target.arch_specific = true;
    text.remove_suffix(1);
  }
  if (text.size() < 2 || text.size() > 3 || text.find_first_not_of("0123456789") != text.npos || text[0] == '0') {
    return std::nullopt;
  }
  target.arch = std::stoi(std::string(text));
  return target;
}

}  // namespace tessella::cuda
