// Division by a number that is known before a kernel starts: a product and a shift for some twenty instructions.
// (Granlund and Montgomery, Division by Invariant Integers using Multiplication, PLDI 1994, figure 4.1.)
#pragma once

#include "portable/integers.hpp"

namespace tessella::portable {

struct Divisor {
  int32_t value;
  uint32_t multiplier, shift;

  // For dividends from 0 to 2^31 - 1, so that no sum below leaves 32 bits.
  constexpr int32_t quotient(int32_t dividend) const {
    const auto n = static_cast<uint32_t>(dividend);
    return static_cast<int32_t>((static_cast<uint32_t>(uint64_t{n} * multiplier >> 32) + n) >> shift);
  }
};

// value: at least 1; a kernel that divides nothing may have 0.
constexpr Divisor divisor(int32_t value) {
  uint32_t shift = 0;
  while (int64_t{1} << shift < value) ++shift;
  if (value == 0) return {0, 1, 0};
  const auto above = static_cast<uint64_t>((int64_t{1} << shift) - value);
  return {value, static_cast<uint32_t>((above << 32) / static_cast<uint64_t>(value) + 1), shift};
}

}  // namespace tessella::portable
