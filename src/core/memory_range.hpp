// Memory that tensors reach: whether two of them meet, and whether one meets itself.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "core/error.hpp"
#include "core/message.hpp"
#include "core/operand.hpp"

namespace tessella::core {

// Bytes [begin, end) between the first and the last element.
struct MemoryRange {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  bool meets(const MemoryRange& other) const { return begin < other.end && other.begin < end; }
};

inline MemoryRange memory_range(const Operand& t, int64_t batch, int64_t rows, int64_t heads, int64_t dim) {
  if (t.data == nullptr || batch == 0 || rows == 0 || heads == 0 || dim == 0) return {};
  return {t.data, t.row(batch - 1, rows - 1, heads - 1) + bytes_of(t.dtype, dim)};
}

// Slices of one buffer interleave without touching: equal row strides, and apart within a row.
inline bool apart_within_rows(const Operand& a, int64_t heads_a, int64_t dim_a, const Operand& b, int64_t heads_b,
                              int64_t dim_b) {
  const int64_t row = bytes_of(a.dtype, a.row_stride);
  if (size_bits(a.dtype) != size_bits(b.dtype) || row == 0 || bytes_of(b.dtype, b.row_stride) != row) return false;
  if (bytes_of(a.dtype, a.batch_stride) % row != 0 || bytes_of(b.dtype, b.batch_stride) % row != 0) return false;
  const int64_t width_a = bytes_of(a.dtype, (heads_a - 1) * a.head_stride + dim_a);
  const int64_t width_b = bytes_of(b.dtype, (heads_b - 1) * b.head_stride + dim_b);
  const int64_t b_after_a = ((b.data - a.data) % row + row) % row;
  return b_after_a >= width_a && b_after_a + width_b <= row;
}

// Throws if two elements share memory: sorted by stride, each axis steps over all that lies inside it.
inline void validate_not_folded(const char* function, const char* name, const Operand& t, int64_t batch, int64_t rows,
                                int64_t heads, int64_t dim) {
  struct Axis {
    int64_t stride, size;
  };
  std::array axes{Axis{t.batch_stride, batch}, Axis{t.row_stride, rows}, Axis{t.head_stride, heads}};
  std::sort(axes.begin(), axes.end(), [](const Axis& a, const Axis& b) { return a.stride < b.stride; });
  if (batch == 0 || rows == 0) return;
  int64_t extent = dim;
  for (const Axis& axis : axes) {
    if (axis.size == 1) continue;
    if (axis.stride < extent) {
      invalid(message(function, ": ", name, " has an axis of stride ", axis.stride, ", expected at least ", extent,
                      " so that no two elements share memory"));
    }
    extent += axis.stride * (axis.size - 1);
  }
}

}  // namespace tessella::core
