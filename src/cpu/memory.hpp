// Sizes of memory, and memory handed out of one allocation.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessella::cpu {

inline constexpr int64_t kLineBytes = 64;  // of a cache line, and of the widest vector

inline constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline constexpr int64_t round_up(int64_t value, int64_t multiple) { return ceil_div(value, multiple) * multiple; }

// Hands out arrays that begin at cache lines, and counts their bytes; a null base only counts.
class Memory {
 public:
  Memory(std::byte* base, int64_t& bytes) : base_(base), bytes_(bytes) {}
  template <typename T>
  void take(int64_t count, T*& pointer) {
    pointer = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + bytes_);
    bytes_ += round_up(count * static_cast<int64_t>(sizeof(T)), kLineBytes);
  }

 private:
  std::byte* base_;
  int64_t& bytes_;
};

}  // namespace tessella::cpu
