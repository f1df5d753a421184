// Rows of sequences as quantize counts them, on the host and on a GPU: which sequence a row of x is in, where it lies,
// and where its scale, its mean and its place in a transposed tensor are.
#pragma once

#include "portable/new_rows.hpp"

namespace tessella::portable {

struct SequenceTables {
  TableParams cu_seqlens, rotary_offsets;  // i32
  int32_t batch;
  Divisor seqlen;     // rows of a sequence
  int32_t total;      // rows of a packed tensor
  int32_t positions;  // at least 1
};

// Rows [begin, end) of batch entry `tensor_batch` of the tensor.
struct SequenceSpan {
  int32_t tensor_batch, begin, end;
};
constexpr SequenceSpan span_of(const SequenceTables& t, int32_t batch_idx) {
  if (t.cu_seqlens.data == nullptr) return {batch_idx, 0, t.seqlen.value};
  const auto begin = static_cast<int32_t>(clamped(entry_of(t.cu_seqlens, 0, batch_idx), 0, t.total));
  return {0, begin, static_cast<int32_t>(clamped(entry_of(t.cu_seqlens, 0, batch_idx + 1), begin, t.total))};
}

struct SequenceRow {
  bool exists = false;  // it is a row of some sequence
  int32_t batch_idx = 0;
  int32_t tensor_batch = 0;
  int32_t row = 0;  // of the tensor's batch entry
  int64_t position = 0;
};

// row: of the tensor's batch entry.
constexpr SequenceRow sequence_row(const SequenceTables& t, int32_t tensor_batch, int32_t row) {
  SequenceRow r{.batch_idx = tensor_batch, .tensor_batch = tensor_batch, .row = row};
  if (t.cu_seqlens.data != nullptr) {
    if (t.batch == 0) return r;
    r.batch_idx = sequence_of(t.cu_seqlens, t.batch, row);
  }
  const SequenceSpan span = span_of(t, r.batch_idx);
  r.exists = row >= span.begin && row < span.end;
  const int64_t offset = t.rotary_offsets.data == nullptr ? 0 : entry_of(t.rotary_offsets, r.batch_idx);
  r.position = clamped(int64_t{row} - span.begin + offset, 0, t.positions - 1);
  return r;
}

// The mean of a sequence's rows is the sum of sums over kMeanRows rows, which its first row begins, in their order,
// over their number; all of fp32.
inline constexpr int32_t kMeanRows = 32;

// Where key k lies among the rows of a transposed tensor. Of 16 consecutive keys, place 4t + b holds key
// 8 (b / 2) + 2t + b % 2, for t and b below 4: the accumulators that a thread has of one product with 8-bit operands
// are then what it needs of the next product's, as they are.
constexpr int64_t key_place(int64_t k) { return (k & ~int64_t{15}) | ((k & 6) << 1) | ((k & 8) >> 2) | (k & 1); }

}  // namespace tessella::portable
