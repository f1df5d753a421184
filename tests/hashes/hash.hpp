// One line a case, "HASH CASE": what a change that may move no bit is held against.
#pragma once

#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>

namespace tessella::tests {

// FNV-1a of 64 bits: no secret is kept by it, only equal bytes from unequal ones.
inline uint64_t hash(std::span<const std::byte> bytes) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const std::byte byte : bytes) hash = (hash ^ static_cast<uint64_t>(byte)) * 0x100000001B3;
  return hash;
}

inline void print_hash(std::span<const std::byte> results, const std::string& name) {
  std::printf("%016" PRIx64 " %s\n", hash(results), name.c_str());
}

}  // namespace tessella::tests
