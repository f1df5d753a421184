// How a call uses its memory.
#pragma once

#include <cstdint>

namespace tessella::core {

// table: lengths, offsets and pages, whose values validate_tables() reads.
enum class Access { table, read, written };

// Memory without axes.
struct Bytes {
  const void* data = nullptr;
  int64_t count = 0;

  template <typename T>
  static Bytes of(const T* one) {
    return {one, sizeof(T)};
  }
};

}  // namespace tessella::core
