// Rows of one head of a tensor: at one stride, or in the pages of a pool.
#pragma once

#include "cuda/device/tile/sequence.cuh"

namespace tessella::device {

// A row of paged k or v: its page in the pool, and its index in the page.
struct PagedRow {
  int32_t page, row;
};
// slot: row of the sequence, below seqlen_kv. The page number from the table is clamped to the pool.
__device__ __forceinline__ PagedRow paged_row(const portable::SequencesParams& p, int32_t batch_idx, int32_t slot) {
  const auto page_idx = p.page_size.quotient(slot);
  const auto* table = static_cast<const int32_t*>(p.page_table.data);
  const int32_t page = table[batch_idx * p.page_table.batch_stride + page_idx * p.page_table.stride];
  return {clamp(page, 0, p.num_pages - 1), slot - page_idx * p.page_size.value};
}

// at(i): the address of row i of the sequence, in a head and from a column on. offset(i): bytes from `first`.
template <bool Paged>
struct HeadRows;

template <>
struct HeadRows<false> {
  const char* first;
  int64_t row_bytes;
  __device__ __forceinline__ const char* at(int32_t i) const { return first + i * row_bytes; }
};

template <>
struct HeadRows<true> {
  const portable::SequencesParams& sequences;
  const char* first;  // of the pool
  int64_t row_bytes, page_bytes;
  int32_t batch_idx, slot;  // of row 0
  __device__ __forceinline__ int64_t offset(int32_t i) const {
    const PagedRow paged = paged_row(sequences, batch_idx, slot + i);
    return paged.page * page_bytes + paged.row * row_bytes;
  }
  __device__ __forceinline__ const char* at(int32_t i) const { return first + offset(i); }
};

}  // namespace tessella::device
