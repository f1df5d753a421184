// Stands in for src/cuda/device/ptx/math.cuh.
#pragma once

#include <cmath>

#include "portable/float8.hpp"

namespace tessella::device::ptx {

inline constexpr bool kRoundsToTf32 = true;

inline uint32_t low_bits(uint32_t count) { return count >= 32 ? ~0u : (1u << count) - 1; }
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
// A NaN becomes the one without a sign (PTX ISA, cvt).
template <class ToFloat8>
uint32_t pack_float8(const ToFloat8& to_float8, float a, float b, float c, float d) {
  const auto of = [&](float x) { return std::isnan(x) ? 0x7Fu : uint32_t{to_float8(x).bits}; };
  return of(a) | of(b) << 8 | of(c) << 16 | of(d) << 24;
}
inline uint32_t pack_e4m3(float a, float b, float c, float d) { return pack_float8(portable::to_float8, a, b, c, d); }
inline constexpr bool kPacksFloat8 = true;
inline uint32_t pack_e5m2(float a, float b, float c, float d) { return pack_float8(portable::to_e5m2, a, b, c, d); }
inline uint32_t and_or(uint32_t x, uint32_t mask, uint32_t bits) { return (x & mask) | bits; }
inline uint32_t and_xor(uint32_t x, uint32_t mask, uint32_t bits) { return (x & mask) ^ bits; }
template <class ToFloat>
uint32_t fma_pairs(uint32_t a, uint32_t b, uint32_t c, const ToFloat& to_float, uint32_t (*pack)(float, float)) {
  const auto sum = [&](int half) {
    const auto of = [&](uint32_t pair) { return to_float(static_cast<uint16_t>(pair >> half * 16)); };
    return std::fma(of(a), of(b), of(c));
  };
  return pack(sum(0), sum(1));
}
inline uint32_t fma_bf16(uint32_t a, uint32_t b, uint32_t c) {
  return fma_pairs(
      a, b, c, [](uint16_t bits) { return __uint_as_float(static_cast<uint32_t>(bits) << 16); }, pack_bf16);
}
inline uint32_t fma_f16(uint32_t a, uint32_t b, uint32_t c) { return fma_pairs(a, b, c, f16_to_float, pack_f16); }
inline constexpr bool kWidensFloat8 = true;
inline uint32_t float8_to_f16(uint32_t word) {
  const auto of = [](unsigned bits) { return portable::to_float(portable::Float8E4M3{static_cast<uint8_t>(bits)}); };
  return pack_f16(of(word & 0xFF), of(word >> 8 & 0xFF));
}
inline float to_tf32(float x) {
  const uint32_t bits = __float_as_uint(x);
  return __uint_as_float((bits + 0xFFF + (bits >> 13 & 1)) & 0xFFFFE000);
}

}  // namespace tessella::device::ptx
