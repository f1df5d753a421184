// What the kernel before a kernel in the emulator has not yet written when that starts (set_kernel_before).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cases/tensor_elements.hpp"
#include "tessella/tessella.h"

namespace tessella::tests {

// Memory that the kernel before writes at its end. Until then, and where it is written before, it is lost.
class Late {
 public:
  Late(std::byte* data, size_t bytes) : data_(data), held_(data, data + bytes) {
    std::memset(data, 0xFF, bytes);  // NaN
  }
  explicit Late(const tessella_tensor& t) : Late(static_cast<std::byte*>(t.data), bytes_of(t)) {}
  void write() const { std::memcpy(data_, held_.data(), held_.size()); }

 private:
  static size_t bytes_of(const tessella_tensor& t) {
    int64_t last = 0;
    for (int axis = 0; axis < t.ndim; ++axis) {
      if (t.shape[axis] == 0) return 0;
      last += (t.shape[axis] - 1) * t.strides[axis];
    }
    return static_cast<size_t>((last + 1) * size_of(t.dtype));
  }

  std::byte* data_;
  std::vector<std::byte> held_;
};

}  // namespace tessella::tests
