// Stands in for src/cuda/device/ptx/math.hpp.
#pragma once

#include <cmath>

#include "portable/float16.hpp"

namespace tessella::device::ptx {

inline constexpr bool kRoundsToTf32 = true;

inline float exp2(float x) { return std::exp2(x); }
inline float log2(float x) { return std::log2(x); }
inline float reciprocal(float x) { return 1 / x; }
inline uint32_t pack_bf16(float low, float high) {
  return portable::to_bfloat16(low).bits | static_cast<uint32_t>(portable::to_bfloat16(high).bits) << 16;
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
