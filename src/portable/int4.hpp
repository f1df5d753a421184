// Integers of 4 bits in two's complement, -8 to 7, two a byte: element 2 i in the low bits of byte i, 2 i + 1 above.
#pragma once

#include "portable/integers.hpp"

namespace tessella::portable {

inline int32_t int4_at(const uint8_t* data, int64_t idx) {
  const uint32_t bits = static_cast<uint32_t>(data[idx / 2]) >> (idx % 2 * 4) & 0xF;
  return static_cast<int32_t>(bits ^ 8) - 8;
}

// Leaves the other element of the byte as it is.
inline void set_int4(uint8_t* data, int64_t idx, int32_t value) {
  const uint32_t shift = static_cast<uint32_t>(idx % 2 * 4);
  const uint32_t kept = data[idx / 2] & (0xF0u >> shift);
  data[idx / 2] = static_cast<uint8_t>(kept | (static_cast<uint32_t>(value) & 0xF) << shift);
}

}  // namespace tessella::portable
