// fp8 (OCP 8-bit Floating Point Specification, revision 1.0) as bit patterns, converted by integer arithmetic with
// round to nearest even. e4m3 ("e4m3fn") has no infinity, and one NaN of either sign; e5m2 is the upper half of f16.
// For scalar code; vector and device kernels convert by their own instructions.
#pragma once

#include "portable/float16.hpp"

namespace tessella::portable {

struct Float8E4M3 {
  uint8_t bits;
};
struct Float8E5M2 {
  uint8_t bits;
};

inline constexpr float kLargestFloat8 = 448;
inline constexpr float kLargestE5M2 = 57344;

inline float to_float(Float8E4M3 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x80) << 24;
  const uint32_t magnitude = value.bits & 0x7F;
  if (magnitude == 0x7F) return bits_float(sign | 0x7FC00000);
  if (magnitude < 0x08) return bits_float(sign | float_bits(static_cast<float>(magnitude) * 0.001953125f));  // 2^-9
  return bits_float(sign | ((magnitude << 20) + 0x3C000000));
}

// Beyond 448 the largest; NaN stays NaN.
inline Float8E4M3 to_float8(float value) {
  const uint32_t bits = float_bits(value);
  const uint32_t sign = bits >> 24 & 0x80;
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return {static_cast<uint8_t>(sign | 0x7F)};
  if (magnitude >= 0x43E00000) return {static_cast<uint8_t>(sign | 0x7E)};  // 448
  if (magnitude < 0x3C800000) {  // below 2^-6: adding 2^14 aligns and rounds the mantissa to 2^-9
    const uint32_t rounded = float_bits(bits_float(magnitude) + 16384.0f) - float_bits(16384.0f);
    return {static_cast<uint8_t>(sign | rounded)};
  }
  const uint32_t rounded = (magnitude - 0x3C000000 + 0x0007FFFF + (magnitude >> 20 & 1)) >> 20;
  return {static_cast<uint8_t>(sign | rounded)};
}

inline float to_float(Float8E5M2 value) { return to_float(Float16{static_cast<uint16_t>(value.bits << 8)}); }

// Beyond 57344, infinity included, the largest; NaN stays NaN.
inline Float8E5M2 to_e5m2(float value) {
  const uint32_t bits = float_bits(value);
  const uint32_t sign = bits >> 24 & 0x80;
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return {static_cast<uint8_t>(sign | 0x7F)};
  if (magnitude >= 0x47600000) return {static_cast<uint8_t>(sign | 0x7B)};  // 57344
  if (magnitude < 0x38800000) {  // below 2^-14: adding 2^7 aligns and rounds the mantissa to 2^-16
    const uint32_t rounded = float_bits(bits_float(magnitude) + 128.0f) - float_bits(128.0f);
    return {static_cast<uint8_t>(sign | rounded)};
  }
  const uint32_t rounded = (magnitude - 0x38000000 + 0x000FFFFF + (magnitude >> 21 & 1)) >> 21;
  return {static_cast<uint8_t>(sign | rounded)};
}

}  // namespace tessella::portable
