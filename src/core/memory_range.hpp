// Memory that tensors reach: whether two of them meet, and whether one meets itself.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/access.hpp"
#include "core/fields.hpp"
#include "core/operand.hpp"

namespace tessella::core {

// The bytes of a tensor's elements, without the gaps between them: runs of `run` bytes, one for each element of axes.
struct MemoryBox {
  struct Axis {
    int64_t size = 1;
    int64_t stride = 0;  // bytes, at least 0
  };
  uintptr_t begin = 0;  // of the first byte, and past the last one; equal: it holds none
  uintptr_t end = 0;
  int64_t run = 0;
  std::array<Axis, 4> axes{};
};

MemoryBox memory_box(const void* data, int64_t bytes);
MemoryBox memory_box(const void* data, int64_t run_bytes, const std::array<MemoryBox::Axis, 4>& axes);
MemoryBox memory_box(const Operand& t, int64_t batch, int64_t rows, int64_t heads, int64_t dim);

inline MemoryBox memory_box(const Bytes& bytes) { return memory_box(bytes.data, bytes.count); }
inline MemoryBox memory_box(const int64_t* value) { return memory_box(value, sizeof(int64_t)); }

template <typename T>
MemoryBox memory_box(const Table<T>& t, int64_t batch, int64_t count) {
  constexpr int64_t kBytes = sizeof(T);
  return memory_box(t.data, kBytes, {{{batch, t.batch_stride * kBytes}, {count, t.stride * kBytes}, {}, {}}});
}

template <typename Byte>
MemoryBox memory_box(const ScoreTensor<Byte>& t, int64_t batch, int64_t heads, int64_t queries, int64_t keys) {
  const int64_t bytes = size_bytes(t.dtype);
  return memory_box(t.data, bytes,
                    {{{batch, t.batch_stride * bytes},
                      {heads, t.head_stride * bytes},
                      {queries, t.q_stride * bytes},
                      {keys, t.kv_stride * bytes}}});
}

inline MemoryBox memory_box(const RangeOperand& t, int64_t batch, int64_t heads, int64_t rows) {
  constexpr int64_t kBytes = sizeof(int32_t);
  return memory_box(
      t.data, 2 * t.count * kBytes,
      {{{batch, t.batch_stride * kBytes}, {heads, t.head_stride * kBytes}, {rows, t.row_stride * kBytes}, {}}});
}

// True if the boxes have a byte in common. Exact if each axis of a box, in some order, steps over all that its smaller
// axes cover, or if the search ends within kMostSteps steps. Otherwise it returns true.
inline constexpr int kMostSteps = 10000;
bool overlap(const MemoryBox& a, const MemoryBox& b);

// Throws if two elements overlap in memory: sorted by stride, each axis must step over all that the smaller ones cover.
// It also rejects the few layouts whose axes interleave without an overlap.
void validate_not_folded(const char* function, const FieldName& name, const Operand& t, int64_t batch, int64_t rows,
                         int64_t heads, int64_t dim);
void validate_not_folded(const char* function, const FieldName& name, const ScoreGradient& t, int64_t batch,
                         int64_t heads, int64_t queries, int64_t keys);

}  // namespace tessella::core
