// Tensors of a call in normal form: views of memory that somebody else owns.
//
// Every operand is logical (batch, row, head, head_dim) whatever the memory layout; broadcast axes have stride 0.
// Strides count elements. Packed tensors (total, heads, head_dim) have batch stride 0 and are cut by cu_seqlens. Paged
// k and v (PagedAttention, arXiv 2309.06180) are pools (page, row of the page, head, head_dim), and row r of a sequence
// is row r % page_size of its page r / page_size; page_table says which page of the pool that is. A transposed tensor
// of 8 bits has its columns as rows, (batch, head_dim, head, row), and whole tiles of 128 rows, each 16 of them in an
// order of their own (portable/sequence_rows.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "core/dtype.hpp"

namespace tessella::core {

// Rows of a transposed tensor come in whole tiles.
inline constexpr int64_t kTransposedTile = 128;
constexpr int64_t whole_tiles(int64_t rows) {
  return (rows / kTransposedTile + (rows % kTransposedTile != 0)) * kTransposedTile;
}

// (batch, row, head, head_dim), head_dim contiguous.
struct Operand {
  std::byte* data = nullptr;
  DType dtype = DType::none;
  int64_t batch_stride = 0;
  int64_t row_stride = 0;
  int64_t head_stride = 0;

  // First element of one row of one head; `row` counts rows of the tensor (of the whole packed tensor).
  std::byte* row(int64_t batch_idx, int64_t row_idx, int64_t head_idx) const {
    return data + bytes_of(dtype, batch_idx * batch_stride + row_idx * row_stride + head_idx * head_stride);
  }
};

// Bytes, a power of two up to 16, that divide the address and every stride.
inline int32_t alignment(const Operand& t) {
  uint64_t bits = 16 | reinterpret_cast<uintptr_t>(t.data);
  for (const int64_t stride : {t.batch_stride, t.row_stride, t.head_stride}) {
    bits |= static_cast<uint64_t>(bytes_of(t.dtype, stride));
  }
  return static_cast<int32_t>(bits & (~bits + 1));
}

// (batch, head, query, key); stride 0 on broadcast axes. The key axis counts slots of the k tensor's sequence
// (padding included); in packed tensors, keys of the sequence.
template <typename Byte>
struct ScoreTensor {
  Byte* data = nullptr;
  DType dtype = DType::none;
  int64_t batch_stride = 0;
  int64_t head_stride = 0;
  int64_t q_stride = 0;
  int64_t kv_stride = 0;

  int64_t index(int64_t batch_idx, int64_t head_idx, int64_t q_idx, int64_t kv_idx) const {
    return batch_idx * batch_stride + head_idx * head_stride + q_idx * q_stride + kv_idx * kv_stride;
  }
};
using ScoreOperand = ScoreTensor<const std::byte>;
// The gradient of a tensor that scores read: summed over the axes of stride 0. Its last two axes may be longer than the
// longest sequence, like those of the tensor.
struct ScoreGradient : ScoreTensor<std::byte> {
  int64_t queries = 1;
  int64_t keys = 1;
};

// i32 (batch, head, row, range, start and end), the last two axes dense; stride 0 on broadcast axes.
struct RangeOperand {
  const int32_t* data = nullptr;
  int64_t batch_stride = 0;
  int64_t head_stride = 0;
  int64_t row_stride = 0;
  int64_t count = 0;  // of a row
};

// Per-batch or per-row values. `data` null means absent.
template <typename T>
struct Table {
  const T* data = nullptr;
  int64_t batch_stride = 0;
  int64_t stride = 0;
  explicit operator bool() const { return data != nullptr; }
  T at(int64_t batch_idx, int64_t idx = 0) const { return data[batch_idx * batch_stride + idx * stride]; }
};

// An array that score_mod and mask_mod read; dense.
struct UserArray {
  const void* data = nullptr;
  DType dtype = DType::none;  // f32, bf16, f16, i32 or bool
  int64_t count = 0;
};
inline constexpr int kMaxUserArrays = 8;

}  // namespace tessella::core
