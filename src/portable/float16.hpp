// bf16 and IEEE half as bit patterns, converted by integer arithmetic with round to nearest even.
// For scalar code; vector kernels convert with their own instructions.
#pragma once

#include "portable/integers.hpp"

namespace tessella::portable {

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

inline uint32_t float_bits(float value) { return __builtin_bit_cast(uint32_t, value); }
inline float bits_float(uint32_t bits) { return __builtin_bit_cast(float, bits); }

inline float to_float(float value) { return value; }
inline float to_float(BFloat16 value) { return bits_float(static_cast<uint32_t>(value.bits) << 16); }

inline float to_float(Float16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000) << 16;
  const uint32_t magnitude = value.bits & 0x7FFF;
  if (magnitude >= 0x7C00) return bits_float(sign | 0x7F800000 | (magnitude & 0x3FF) << 13);
  if (magnitude < 0x0400) {  // zero and subnormals: magnitude * 2^-24, exact in float
    return bits_float(sign | float_bits(static_cast<float>(magnitude) * 5.9604644775390625e-8f));
  }
  return bits_float(sign | ((magnitude << 13) + 0x38000000));
}

inline BFloat16 to_bfloat16(float value) {
  const uint32_t bits = float_bits(value);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return {static_cast<uint16_t>(bits >> 16 | 0x40)};  // quiet NaN
  return {static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)};
}

inline Float16 to_float16(float value) {
  const uint32_t bits = float_bits(value);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return {static_cast<uint16_t>(sign | 0x7E00)};
  if (magnitude >= 0x477FF000) return {static_cast<uint16_t>(sign | 0x7C00)};  // rounds to infinity
  if (magnitude < 0x38800000) {  // subnormal half: adding 0.5 aligns and rounds the mantissa to 2^-24
    const uint32_t rounded = float_bits(bits_float(magnitude) + 0.5f) - float_bits(0.5f);
    return {static_cast<uint16_t>(sign | rounded)};
  }
  const uint32_t rounded = magnitude - 0x38000000 + 0x0FFF + (magnitude >> 13 & 1);
  return {static_cast<uint16_t>(sign | rounded >> 13)};
}

}  // namespace tessella::portable
