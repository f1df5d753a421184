// Backward cases whose out and LSE are another forward's: the gradients that a kernel makes of them are wrong, and a
// check, which knows the options of the backward alone, must say so.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "cases/cases.hpp"

namespace tessella::tests {

// What is wrong: the numbers themselves, or an option or tensor that the forward had and the backward has not, or the
// other way round.
inline constexpr std::array kWrongForwards = {"lse", "out", "scale", "softcap", "mask", "sink", "bias", "length"};

enum class Caught {
  yes,
  no,
  no_need,  // the gradients differ by no more than rounding, or the case has not what would be wrong
};
struct Catch {
  Caught caught;
  std::string message;
};

// Runs a case with a wrong forward. What rounding costs is measured on the same numbers in f64.
Catch run_wrong_forward(const Case& c, std::string_view what);

}  // namespace tessella::tests
