// Rows of floats as a scale and elements of 8 or 4 bits: what quantize writes, and an append into a quantised cache.
//
// Every compiler and device gives the same bits: there are a division, a sum with a constant and comparisons, of which
// nothing contracts, and below kLeastScale nothing is left in which flushed subnormal numbers, as CPU threads have
// them, would show.
#pragma once

#include "portable/element.hpp"
#include "portable/float8.hpp"
#include "portable/int4.hpp"

namespace tessella::portable {

// element, here and below: is_quantized().

// The largest number stored; the least is its negative.
constexpr float largest(Element element) {
  switch (element) {
    case Element::e4m3: return kLargestFloat8;
    case Element::e5m2: return kLargestE5M2;
    case Element::i8: return 127;
    default: return 7;
  }
}

inline constexpr float kLeastScale = 0x1p-90f;  // below it a scale counts as zero

// Its size as an integer that orders floats; a NaN is above infinity.
inline uint32_t magnitude(float x) { return float_bits(x) & 0x7FFFFFFF; }

// The scale of a row of this largest magnitude. NaN if a value is not finite; 1 if all count as zero.
inline float scale_of(uint32_t largest_magnitude, Element element) {
  if (largest_magnitude >= 0x7F800000) return bits_float(0x7FC00000);
  const float scale = bits_float(largest_magnitude) / largest(element);
  return scale >= kLeastScale ? scale : 1.0f;
}

// The divisor of values: the scale, or infinity if it counts as zero.
inline float divisor_of(float scale) {
  return magnitude(scale) < float_bits(kLeastScale) ? bits_float(0x7F800000) : scale;
}

// The bits that are stored, in the low ones: x / divisor, to nearest even, within the largest number stored. A NaN is
// one where the type has it, else 0; a zero is +0.
inline uint32_t quantized(float x, float divisor, Element element) {
  const float quotient = x / divisor;
  if (element == Element::e4m3) {
    const uint32_t bits = to_float8(quotient).bits;
    const uint32_t size = bits & 0x7F;
    return size == 0x7F || size == 0 ? size : bits;
  }
  if (element == Element::e5m2) {
    const uint32_t bits = to_e5m2(quotient).bits;
    const uint32_t size = bits & 0x7F;
    return size == 0x7F || size == 0 ? size : bits;
  }
  // In integers, which compilers vectorize.
  const uint32_t size = magnitude(quotient), most = float_bits(largest(element));
  const float within = bits_float((float_bits(quotient) & 0x80000000) | (size < most ? size : most));
  constexpr float kAligned = 0x1.8p23f;  // a sum with it has its last bit at 1
  const uint32_t whole = float_bits(within + kAligned) - float_bits(kAligned);
  return (size <= 0x7F800000 ? whole : 0) & (element == Element::i4 ? 0xF : 0xFF);
}

// The number that such bits are.
inline float number_of(uint32_t bits, Element element) {
  if (element == Element::e4m3) return to_float(Float8E4M3{static_cast<uint8_t>(bits)});
  if (element == Element::e5m2) return to_float(Float8E5M2{static_cast<uint8_t>(bits)});
  const uint32_t sign = element == Element::i4 ? 0x8 : 0x80;
  return static_cast<float>(static_cast<int32_t>(bits ^ sign) - static_cast<int32_t>(sign));
}

// A row in memory, on the host; count is even for i4.
template <Element kElement>
inline void quantize_row(const float* row, int64_t count, float divisor, uint8_t* into) {
  static_assert(is_quantized(kElement));
  if constexpr (kElement == Element::i4) {
    for (int64_t c = 0; c < count; c += 2) {
      into[c / 2] =
          static_cast<uint8_t>(quantized(row[c], divisor, kElement) | quantized(row[c + 1], divisor, kElement) << 4);
    }
  } else {
    for (int64_t c = 0; c < count; ++c) into[c] = static_cast<uint8_t>(quantized(row[c], divisor, kElement));
  }
}

inline uint32_t largest_magnitude(const float* row, int64_t count) {
  uint32_t most = 0;
  for (int64_t c = 0; c < count; ++c) most = magnitude(row[c]) > most ? magnitude(row[c]) : most;
  return most;
}

}  // namespace tessella::portable
