// The floating-point mode of a thread while the library computes on it: rounding to nearest, exceptions masked, and
// subnormals as the work needs them. The end of the scope restores the caller's mode and its exception flags.
#pragma once

#include <cstdint>

namespace tessella::process {

enum class Subnormals {
  keep,   // IEEE 754
  flush,  // inputs and results below 2^-126 count as zero: a vector of them costs hundreds of cycles
};

class FloatMode {
 public:
  // Not inline, so that no arithmetic moves across.
  explicit FloatMode(Subnormals subnormals);
  ~FloatMode();
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
  uint64_t callers_;  // control register
};

}  // namespace tessella::process
