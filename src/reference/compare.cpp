#include "reference/compare.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

namespace tessella::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool same_kind(double got, double expected) {
  if (std::isnan(expected) || std::isnan(got)) return std::isnan(expected) && std::isnan(got);
  if (std::isinf(expected) || std::isinf(got)) return got == expected;
  return true;
}

}  // namespace

void Comparison::add(const Index& index, double got, double expected, double plain, double noise) {
  if (misplaced_) return;  // the first misplaced element is the worst there is
  // A value beyond the dtype's largest number, or one that rounds to it, becomes infinity in the plain computation too,
  // or f16's largest number, if the two are rounded to either side of the end of its range.
  constexpr double kNearLargestF16 = 0x1p14, kLargestF16 = 65504;
  const bool is_large = std::isfinite(expected) && std::abs(expected) > kNearLargestF16;
  const bool overflows =
      is_large && ((std::isinf(plain) && got == plain) || (std::abs(plain) == kLargestF16 && got == plain * kInfinity));
  misplaced_ = !same_kind(got, expected) && !overflows;
  Element element{index, got, expected, 0, std::isfinite(noise) ? noise : 0};
  if (misplaced_) {
    element.error = std::numeric_limits<double>::quiet_NaN();
  } else if (std::isfinite(expected) && !overflows) {
    element.error = std::abs(got - expected);
  }
  if (!any_ || element.error > largest_.error) largest_ = element;
  if (!any_ || misplaced_ || element.error - element.noise > furthest_.error - furthest_.noise) furthest_ = element;
  any_ = true;
  // A plain computation that overflows says nothing about the tolerance.
  if (std::isfinite(expected) && std::isfinite(plain))
    plain_error_ = std::max(plain_error_, std::abs(plain - expected));
}

std::string Comparison::message() const {
  const Element& at = worst();
  std::ostringstream line;
  line.precision(9);
  line << (passed() ? "passed" : "failed") << ": worst element (batch " << at.index[0] << ", row " << at.index[1]
       << ", head " << at.index[2] << ", dim " << at.index[3] << ") is " << at.got << ", expected " << at.expected
       << "; error " << at.error << ", plain error " << plain_error_ << ", tolerance " << tolerance();
  return line.str();
}

}  // namespace tessella::reference
