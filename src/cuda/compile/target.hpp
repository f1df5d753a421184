// The target of a compilation: sm_90, sm_90a, or compute_80 (PTX, which the driver compiles for any later GPU).
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

inline std::optional<Target> parse_target(std::string_view string) {
  Target target;
  if (string.starts_with("sm_")) {
    string.remove_prefix(3);
  } else if (string.starts_with("compute_")) {
    string.remove_prefix(8);
    target.ptx = true;
  } else {
    return std::nullopt;
  }
  if (string.ends_with('a')) {
    target.arch_specific = true;
    string.remove_suffix(1);
  }
  if (string.size() < 2 || string.size() > 3 || string.find_first_not_of("0123456789") != string.npos ||
      string[0] == '0') {
    return std::nullopt;
  }
  target.arch = std::stoi(std::string(string));
  return target;
}

}  // namespace tessella::cuda
