// The rows of a cache that an append writes to, and the positions of the new rows.
//
// Tables may be in device memory, where the host has checked nothing. A row without a slot in the cache is skipped, and
// a position stays within the tables of angles.
#pragma once

#include "portable/divisor.hpp"
#include "portable/operand_params.hpp"

namespace tessella::portable {

// One value a sequence in most tables; data null: absent.
struct NewRowTables {
  TableParams seqlens_kv, seqlens_new, cu_seqlens_new, leftpad_kv, rotary_offsets, cache_batch_idx;  // i32
  TableParams page_table;
  int32_t batch;
  Divisor seqlen_new;  // rows of a sequence
  int32_t total_new;   // rows of packed tensors
  int32_t seqlen_kv;   // rows that a sequence may have in the cache
  int32_t num_slots;   // or pages
  Divisor page_size;
  int32_t positions;  // at least 1
};

struct NewRow {
  bool is_new = false;    // it is a row of some sequence
  int32_t batch_idx = 0;  // its sequence, and where it lies in the tensors of new rows
  int32_t from_batch = 0;
  int32_t from_row = 0;
  bool has_slot = false;  // in the cache
  int32_t slot = 0;       // or page
  int32_t row = 0;
  int64_t position = 0;
};

constexpr int32_t entry_of(const TableParams& table, int64_t batch_idx, int64_t idx = 0) {
  return static_cast<const int32_t*>(table.data)[batch_idx * table.batch_stride + idx * table.stride];
}

constexpr int64_t clamped(int64_t value, int64_t low, int64_t high) {
  return value < low ? low : value > high ? high : value;
}

// The last sequence that begins at or before the row.
constexpr int32_t sequence_of(const TableParams& cu_seqlens, int32_t batch, int32_t row) {
  int32_t low = 0, high = batch - 1;
  while (low < high) {
    const int32_t middle = low + (high - low + 1) / 2;
    if (entry_of(cu_seqlens, 0, middle) <= row)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

// token: a row of all sequences together, below batch * seqlen_new, packed total_new.
constexpr NewRow new_row(const NewRowTables& t, int32_t token) {
  NewRow r;
  int64_t idx, rows;  // of the row in its sequence, of the sequence
  if (t.cu_seqlens_new.data != nullptr) {
    if (t.batch == 0) return r;
    r.batch_idx = sequence_of(t.cu_seqlens_new, t.batch, token);
    r.from_row = token;
    const int64_t begin = clamped(entry_of(t.cu_seqlens_new, 0, r.batch_idx), 0, t.total_new);
    const int64_t end = clamped(entry_of(t.cu_seqlens_new, 0, r.batch_idx + 1), begin, t.total_new);
    idx = token - begin;
    rows = end - begin;
  } else {
    r.batch_idx = r.from_batch = t.seqlen_new.quotient(token);
    r.from_row = token - r.batch_idx * t.seqlen_new.value;
    idx = r.from_row;
    rows = t.seqlen_new.value;
  }
  if (t.seqlens_new.data != nullptr) rows = clamped(entry_of(t.seqlens_new, r.batch_idx), 0, rows);
  if (idx < 0 || idx >= rows) return r;
  r.is_new = true;

  const int64_t row = entry_of(t.seqlens_kv, r.batch_idx) - rows + idx;
  const int64_t leftpad = t.leftpad_kv.data == nullptr ? 0 : entry_of(t.leftpad_kv, r.batch_idx);
  const int64_t offset = t.rotary_offsets.data == nullptr ? 0 : entry_of(t.rotary_offsets, r.batch_idx);
  r.position = clamped(row - leftpad + offset, 0, t.positions - 1);
  if (row < 0 || row >= t.seqlen_kv) return r;
  r.slot = r.batch_idx;
  r.row = static_cast<int32_t>(row);
  if (t.page_table.data != nullptr) {
    const int32_t page = t.page_size.quotient(r.row);
    r.slot = entry_of(t.page_table, r.batch_idx, page);
    r.row -= page * t.page_size.value;
  } else if (t.cache_batch_idx.data != nullptr) {
    r.slot = entry_of(t.cache_batch_idx, r.batch_idx);
  }
  r.has_slot = r.slot >= 0 && r.slot < t.num_slots;
  return r;
}

}  // namespace tessella::portable
