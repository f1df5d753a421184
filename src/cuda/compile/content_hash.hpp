// FNV-1a over 128 bits (Fowler, Noll, Vo): names cached content and finds damage in it. No defence against an attacker,
// who cannot write into the cache folder.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tessella::cuda {

struct Hash128 {
  uint64_t high = 0x6C62272E07BB0142;
  uint64_t low = 0x62B821756295C58D;
  bool operator==(const Hash128&) const = default;

  void add_bytes(std::string_view bytes) {
    for (const char byte : bytes) {
      low ^= static_cast<unsigned char>(byte);
      // times the prime 2^88 + 0x13B
      const uint64_t bottom = (low & 0xFFFFFFFF) * 0x13B;
      const uint64_t middle = (low >> 32) * 0x13B + (bottom >> 32);
      high = high * 0x13B + (middle >> 32) + (low << 24);
      low = middle << 32 | (bottom & 0xFFFFFFFF);
    }
  }

  // With its length, so that two fields never run into one.
  void add_field(std::string_view string) {
    add_bytes(std::to_string(string.size()) + ":");
    add_bytes(string);
  }

  std::string hex() const {
    constexpr const char* kDigits = "0123456789abcdef";
    std::string string;
    for (const uint64_t word : {high, low}) {
      for (int shift = 60; shift >= 0; shift -= 4) string += kDigits[word >> shift & 15];
    }
    return string;
  }
};

}  // namespace tessella::cuda
