// Stands in for src/cuda/device/ptx/math.hpp.
#pragma once

#include <cmath>

#include "portable/float16.hpp"

namespace tessella::device::ptx {

inline constexpr bool kRoundsToTf32 = true;

inline uint32_t low_bits(uint32_t count) { return count >= 32 ? ~0u : (1u << count) - 1; }
inline float exp2(float x) { return std::exp2(x); }
inline float log2(float x) { return std::log2(x); }
inline float saturated_square(float x) { return x * x <= 1 ? x * x : x * x > 1 ? 1.0f : 0.0f; }
inline float reciprocal(float x) { return 1 / x; }
inline uint32_t pack_bf16(float low, float high) {
  return portable::to_bfloat16(low).bits | static_cast<uint32_t>(portable::to_bfloat16(high).bits) << 16;
}
inline uint32_t multiply_bf16(uint32_t pair, float factor) {
  return pack_bf16(__uint_as_float(pair << 16) * factor, __uint_as_float(pair & 0xFFFF0000) * factor);
}
inline uint32_t pack_f16(float low, float high) {
  return portable::to_float16(low).bits | static_cast<uint32_t>(portable::to_float16(high).bits) << 16;
}
inline float f16_to_float(uint16_t bits) { return portable::to_float(portable::Float16{bits}); }
inline float to_tf32(float x) {
  const uint32_t bits = __float_as_uint(x);
  return __uint_as_float((bits + 0xFFF + (bits >> 13 & 1)) & 0xFFFFE000);
}

}  // namespace tessella::device::ptx
