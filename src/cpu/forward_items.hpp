// Work items of a forward pass: one KV head and a run of its packed rows (strip.hpp), most expensive first.
//
// Items depend on sizes and threads only for balance: a row's result does not depend on which item computes it.
// Every row of the out tensor belongs to exactly one item, also those of no query: past a sequence's length, or
// between the sequences of a packed tensor.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/arguments.hpp"

namespace tessella::cpu {

struct ForwardItem {
  int64_t batch_idx = 0;  // -1: rows of no sequence, counted from row 0 of the tensor
  int64_t kv_head = 0;
  int64_t row_begin = 0;  // packed rows: row = query * group + head in the group
  int64_t num_rows = 0;
};

// Of one KV head over all sequences.
int64_t packed_rows(const core::AttentionShape& shape);

// Rows an item should have: a multiple of strip_rows, at most max_strips strips, few enough that every thread
// gets several items.
int64_t item_rows(const core::AttentionShape& shape, int num_threads, int strip_rows, int max_strips);

class ForwardItems {
 public:
  // Memory for the list; a bound for all item sizes of at least strip_rows.
  static int64_t scratch_bytes(const core::AttentionShape& shape, int strip_rows);

  // scratch: aligned for int64_t; must outlive this.
  ForwardItems(const core::AttentionArguments& arguments, int64_t rows_per_item, void* scratch);

  int64_t size() const { return num_blocks_ * heads_kv_; }
  ForwardItem operator[](int64_t idx) const;

 private:
  struct Block {  // the same rows of every KV head
    int64_t row_begin;
    int64_t cost;
    int32_t batch_idx;
    int32_t num_rows;
  };
  void add_rows(int64_t batch_idx, int64_t row_begin, int64_t row_end, int64_t rows_per_item);

  const core::AttentionArguments* arguments_;
  int64_t heads_kv_ = 0;
  int64_t num_blocks_ = 0;
  Block* blocks_ = nullptr;
};

// Writes output 0 and LSE -inf to rows that see nothing because they are no queries.
void fill_hidden_rows(const core::AttentionArguments& arguments, const ForwardItem& item, int64_t row_begin,
                      int64_t row_end);

}  // namespace tessella::cpu
