// Tensors of a call in normal form: views of memory that somebody else owns.
//
// Every operand is logical (batch, row, head, head_dim) whatever the memory layout; broadcast axes have stride 0.
// Strides count elements. Packed tensors (total, heads, head_dim) have batch stride 0 and are cut by cu_seqlens. Paged
// k and v (PagedAttention, arXiv 2309.06180) are pools (page, row of the page, head, head_dim), and row r of a sequence
// is row r % page_size of its page r / page_size; page_table says which page of the pool that is. A transposed tensor
// of 8 bits has its columns as rows, (batch, head_dim, head, row), and whole tiles of 128 rows, each 16 of them in an
// order of their own (portable/sequence_rows.hpp).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

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

// The operands of attention and its gradients.
enum class Name : int32_t { q, k, v, out, lse, q_scale, k_scale, v_scale, out_scale, amax, d_out, d_lse, dq, dk, dv };
inline constexpr std::array kNames = {Name::q,       Name::k,       Name::v,       Name::out,       Name::lse,
                                      Name::q_scale, Name::k_scale, Name::v_scale, Name::out_scale, Name::amax,
                                      Name::d_out,   Name::d_lse,   Name::dq,      Name::dk,        Name::dv};
constexpr const char* name(Name name) {
  switch (name) {
    case Name::q: return "q";
    case Name::k: return "k";
    case Name::v: return "v";
    case Name::out: return "out";
    case Name::lse: return "lse";
    case Name::q_scale: return "q_scale";
    case Name::k_scale: return "k_scale";
    case Name::v_scale: return "v_scale";
    case Name::out_scale: return "out_scale";
    case Name::amax: return "amax";
    case Name::d_out: return "d_out";
    case Name::d_lse: return "d_lse";
    case Name::dq: return "dq";
    case Name::dk: return "dk";
    case Name::dv: return "dv";
  }
  return "";
}

// One value for each operand.
template <typename Value>
struct ByName {
  std::array<Value, kNames.size()> values{};
  constexpr Value& operator[](Name name) { return values[static_cast<size_t>(name)]; }
  constexpr const Value& operator[](Name name) const { return values[static_cast<size_t>(name)]; }
  bool operator==(const ByName&) const = default;
};

}  // namespace tessella::core
