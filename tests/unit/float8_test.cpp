// fp8 and 4-bit integers: every bit pattern there and back, and rounding against exact arithmetic in float64.
#include "portable/float8.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "cases/random.hpp"
#include "portable/int4.hpp"

namespace tessella::tests {
namespace {

using portable::Float8E4M3;
using portable::Float8E5M2;

// Of numbers with so many bits of a fraction, the least exponent of normal ones and the largest number.
double nearest(double value, int bits = 3, int least = -6, double most = 448) {
  if (value == 0) return value;
  const double unit = std::ldexp(1.0, std::max(std::ilogb(value), least) - bits);
  return std::clamp(std::nearbyint(value / unit) * unit, -most, most);
}

TEST(Float8, EveryPatternComesBack) {
  for (int bits = 0; bits < 256; ++bits) {
    const Float8E4M3 value{static_cast<uint8_t>(bits)};
    const float wide = portable::to_float(value);
    EXPECT_EQ(std::isnan(wide), (bits & 0x7F) == 0x7F);
    EXPECT_EQ(int{portable::to_float8(wide).bits}, bits);
    const int exponent = bits >> 3 & 0xF, mantissa = bits & 7;
    const double exact = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    if (std::isnan(wide)) continue;
    EXPECT_EQ(wide, bits < 128 ? exact : -exact);
  }
}

TEST(Float8, RoundsToNearestEven) {
  Random random(1);
  for (int i = 0; i < 100000; ++i) {
    const auto value = static_cast<float>(random.normal() * std::ldexp(1.0, static_cast<int>(random.in(-12, 10))));
    ASSERT_EQ(portable::to_float(portable::to_float8(value)), nearest(value)) << value;
  }
  for (int step = -2000; step <= 2000; ++step) {  // ties
    const auto value = static_cast<float>(std::ldexp(step, -10));
    ASSERT_EQ(portable::to_float(portable::to_float8(value)), nearest(value)) << value;
  }
  EXPECT_EQ(portable::to_float(portable::to_float8(INFINITY)), 448);
  EXPECT_EQ(portable::to_float(portable::to_float8(-1e30F)), -448);
}

TEST(Float8, E5M2EveryPatternComesBack) {
  for (int bits = 0; bits < 256; ++bits) {
    const float wide = portable::to_float(Float8E5M2{static_cast<uint8_t>(bits)});
    const int magnitude = bits & 0x7F, exponent = magnitude >> 2, mantissa = magnitude & 3;
    EXPECT_EQ(std::isnan(wide), magnitude > 0x7C);
    EXPECT_EQ(std::isinf(wide), magnitude == 0x7C);
    if (!std::isfinite(wide)) continue;
    EXPECT_EQ(int{portable::to_e5m2(wide).bits}, bits);
    const double exact = exponent == 0 ? std::ldexp(mantissa, -16) : std::ldexp(4 + mantissa, exponent - 17);
    EXPECT_EQ(wide, bits < 128 ? exact : -exact);
  }
}

TEST(Float8, E5M2RoundsToNearestEven) {
  Random random(2);
  for (int i = 0; i < 100000; ++i) {
    const auto value = static_cast<float>(random.normal() * std::ldexp(1.0, static_cast<int>(random.in(-20, 17))));
    ASSERT_EQ(portable::to_float(portable::to_e5m2(value)), nearest(value, 2, -14, 57344)) << value;
  }
  for (int step = -2000; step <= 2000; ++step) {  // ties
    const auto value = static_cast<float>(std::ldexp(step, -17));
    ASSERT_EQ(portable::to_float(portable::to_e5m2(value)), nearest(value, 2, -14, 57344)) << value;
  }
  EXPECT_EQ(portable::to_float(portable::to_e5m2(INFINITY)), 57344);
  EXPECT_EQ(portable::to_float(portable::to_e5m2(-1e30F)), -57344);
  EXPECT_TRUE(std::isnan(portable::to_float(portable::to_e5m2(NAN))));
}

// Every number of e5m2 is itself, and what lies between two of them goes to the nearer one.
TEST(Float8, RoundsToE5M2) {
  for (uint32_t bits = 0; bits < 256; ++bits) {
    const float number = portable::to_float(portable::Float8E5M2{static_cast<uint8_t>(bits)});
    if (!std::isfinite(number)) continue;
    EXPECT_EQ(portable::to_e5m2(number).bits, bits);
    if ((bits & 0x7F) >= 0x7B) continue;
    const float next = portable::to_float(portable::Float8E5M2{static_cast<uint8_t>(bits + 1)});
    const float middle = number / 2 + next / 2, away = bits < 128 ? 1e9F : -1e9F;
    EXPECT_EQ(portable::to_e5m2(middle).bits, bits + bits % 2);
    EXPECT_EQ(portable::to_e5m2(std::nextafter(middle, 0.0F)).bits, bits);
    EXPECT_EQ(portable::to_e5m2(std::nextafter(middle, away)).bits, bits + 1);
  }
}

TEST(Int4, TwoLiveInAByte) {
  uint8_t data[2] = {0xFF, 0xFF};
  for (int32_t value = -8; value <= 7; ++value) {
    for (int64_t idx = 0; idx < 4; ++idx) {
      portable::set_int4(data, idx, value);
      EXPECT_EQ(portable::int4_at(data, idx), value);
      EXPECT_EQ(data[idx / 2] >> (idx % 2 * 4) & 0xF, value & 0xF);
      EXPECT_EQ(int{data[1 - idx / 2]}, 0xFF);
      data[idx / 2] = 0xFF;
    }
  }
}

}  // namespace
}  // namespace tessella::tests
