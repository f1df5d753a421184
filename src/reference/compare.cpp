#include "reference/compare.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

namespace tessella::reference {
namespace {

bool same_kind(double got, double expected) {
  if (std::isnan(expected) || std::isnan(got)) return std::isnan(expected) && std::isnan(got);
  if (std::isinf(expected) || std::isinf(got)) return got == expected;
  return true;
}

}  // namespace

void Comparison::add(const Index& index, double got, double expected, double plain, double noise) {
  if (misplaced_) return;  // the first misplaced element is the worst there is
  misplaced_ = !same_kind(got, expected);
  const double error =
      misplaced_ ? std::numeric_limits<double>::quiet_NaN() : (std::isfinite(expected) ? std::abs(got - expected) : 0);
  if (misplaced_ || error > max_error_) {
    max_error_ = error;
    worst_index_ = index;
    worst_got_ = got;
    worst_expected_ = expected;
  }
  // A plain computation that overflows says nothing about the tolerance.
  if (std::isfinite(expected) && std::isfinite(plain))
    plain_error_ = std::max(plain_error_, std::abs(plain - expected));
  if (std::isfinite(noise)) noise_ = std::max(noise_, noise);
}

std::string Comparison::text() const {
  std::ostringstream text;
  text.precision(9);
  text << (passed() ? "passed" : "failed") << ": worst element (batch " << worst_index_[0] << ", row "
       << worst_index_[1] << ", head " << worst_index_[2] << ", dim " << worst_index_[3] << ") is " << worst_got_
       << ", expected " << worst_expected_ << "; error " << max_error_ << ", plain error " << plain_error_
       << ", tolerance " << tolerance();
  return text.str();
}

}  // namespace tessella::reference
