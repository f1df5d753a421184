// bf16 and half: every bit pattern there and back, and rounding against exact arithmetic in float64.
#include "portable/float16.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cases/random.hpp"

namespace tessella::tests {
namespace {

using portable::BFloat16;
using portable::Float16;

template <typename T>
struct Format;
template <>
struct Format<BFloat16> {
  static constexpr int kMantissaBits = 7, kMinExponent = -126;
  static constexpr double kMax = 0x1.FEp127;
  static BFloat16 round(float value) { return portable::to_bfloat16(value); }
};
template <>
struct Format<Float16> {
  static constexpr int kMantissaBits = 10, kMinExponent = -14;
  static constexpr double kMax = 65504;
  static Float16 round(float value) { return portable::to_float16(value); }
};

// Round to nearest even by scaling to integers, which double holds exactly.
template <typename T>
double rounded(double value) {
  if (value == 0 || !std::isfinite(value)) return value;
  const int exponent = std::max(std::ilogb(value), Format<T>::kMinExponent);
  const double unit = std::ldexp(1.0, exponent - Format<T>::kMantissaBits);
  const double nearest = std::nearbyint(value / unit) * unit;
  if (std::abs(nearest) > Format<T>::kMax) return std::copysign(std::numeric_limits<double>::infinity(), value);
  return nearest;
}

template <typename T>
class Float16Test : public testing::Test {};
using Formats = testing::Types<BFloat16, Float16>;
TYPED_TEST_SUITE(Float16Test, Formats);

TYPED_TEST(Float16Test, EveryPatternSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const TypeParam value{static_cast<uint16_t>(bits)};
    const float wide = portable::to_float(value);
    const TypeParam back = Format<TypeParam>::round(wide);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(portable::to_float(back))) << bits;
    } else {
      ASSERT_EQ(back.bits, value.bits);
    }
  }
}

TYPED_TEST(Float16Test, RoundsToNearestEven) {
  const auto check = [](float value) {
    const double got = portable::to_float(Format<TypeParam>::round(value));
    ASSERT_EQ(got, rounded<TypeParam>(value)) << value;
    ASSERT_EQ(std::signbit(got), std::signbit(value)) << value;
  };
  // Between neighbours: halfway, and a hair to both sides.
  for (uint32_t bits = 0; bits < 0x8000; ++bits) {
    const double low = portable::to_float(TypeParam{static_cast<uint16_t>(bits)});
    const double high = portable::to_float(TypeParam{static_cast<uint16_t>(bits + 1)});
    if (!std::isfinite(low) || !std::isfinite(high)) continue;
    const auto middle = static_cast<float>((low + high) / 2);
    for (const float value : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e38f)}) {
      check(value);
      check(-value);
    }
  }
  Random random(4);
  for (int trial = 0; trial < 1'000'000; ++trial) {
    const float value = portable::bits_float(static_cast<uint32_t>(random.bits()));
    if (!std::isnan(value)) check(value);
  }
}

TYPED_TEST(Float16Test, KeepsNaNAndInfinity) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(portable::to_float(Format<TypeParam>::round(infinity)), infinity);
  EXPECT_EQ(portable::to_float(Format<TypeParam>::round(-infinity)), -infinity);
  for (const uint32_t bits : {0x7FC00000u, 0x7F800001u, 0xFFFFFFFFu, 0xFF800001u}) {
    EXPECT_TRUE(std::isnan(portable::to_float(Format<TypeParam>::round(portable::bits_float(bits)))));
  }
}

}  // namespace
}  // namespace tessella::tests
