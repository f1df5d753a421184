// Cuts the rows of all sequences into items and orders them by estimated work.
#include "cpu/forward_items.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>

#include "core/sequence.hpp"
#include "cpu/memory.hpp"
#include "cpu/strip.hpp"

namespace tessella::cpu {
namespace {

constexpr int64_t kItemsPerThread = 8;  // enough for a causal triangle to level out

// About the number of visible scores of rows [row_begin, row_end), plus a constant for loading and storing a row.
int64_t estimate_cost(const core::AttentionArguments& p, const core::Sequence& s, int64_t row_begin, int64_t row_end) {
  constexpr int64_t kRowCost = 16;
  const int64_t rows = std::min(row_end, s.len_q * p.group()) - row_begin;
  if (rows <= 0) return 0;
  const int64_t first = row_begin / p.group();
  const int64_t last = (row_begin + rows - 1) / p.group();
  const auto keys = [&](int64_t i) { return s.band.end(i) - s.band.begin(i); };
  return rows * ((keys(first) + keys(last)) / 2 + kRowCost);
}

}  // namespace

int64_t packed_rows(const core::AttentionShape& p) {
  return (p.features.has(core::Feature::packed_q) ? p.total_q : p.batch * p.seqlen_q) * p.group();
}

int64_t item_rows(const core::AttentionShape& shape, int num_threads, int strip_rows, int max_strips) {
  const int64_t share = ceil_div(packed_rows(shape) * shape.heads_kv, num_threads * kItemsPerThread);
  const int64_t strips = std::clamp<int64_t>(ceil_div(share, strip_rows), 1, max_strips);
  // Equal parts of a sequence rather than full items and a short one.
  const int64_t sequence_strips = std::max<int64_t>(1, ceil_div(shape.seqlen_q * shape.group(), strip_rows));
  return ceil_div(sequence_strips, ceil_div(sequence_strips, strips)) * strip_rows;
}

int64_t ForwardItems::scratch_bytes(const core::AttentionShape& shape, int strip_rows) {
  // Each sequence has at most one item that is not full; a packed tensor has rows past its sequences.
  const int64_t blocks = packed_rows(shape) / strip_rows + shape.batch + 1;
  return blocks * static_cast<int64_t>(sizeof(Block));
}

ForwardItems::ForwardItems(const core::AttentionArguments& arguments, int64_t rows_per_item, void* scratch)
    : arguments_(&arguments), heads_kv_(arguments.heads_kv), blocks_(static_cast<Block*>(scratch)) {
  const int64_t group = arguments.group();
  if (arguments.cu_seqlens_q) {
    add_rows(-1, arguments.cu_seqlens_q.at(0, arguments.batch) * group, arguments.total_q * group, rows_per_item);
  }
  for (int64_t b = 0; b < arguments.batch; ++b) {
    add_rows(b, 0, core::sequence(arguments, b).slots_q * group, rows_per_item);
  }
  std::sort(blocks_, blocks_ + num_blocks_, [](const Block& a, const Block& b) {
    if (a.cost != b.cost) return a.cost > b.cost;
    return a.batch_idx != b.batch_idx ? a.batch_idx < b.batch_idx : a.row_begin < b.row_begin;
  });
}

void ForwardItems::add_rows(int64_t batch_idx, int64_t row_begin, int64_t row_end, int64_t rows_per_item) {
  if (row_begin >= row_end) return;
  core::Sequence sequence;
  if (batch_idx >= 0) sequence = core::sequence(*arguments_, batch_idx);
  for (int64_t row = row_begin; row < row_end; row += rows_per_item) {
    const int64_t end = std::min(row + rows_per_item, row_end);
    const int64_t cost = batch_idx < 0 ? 0 : estimate_cost(*arguments_, sequence, row, end);
    new (blocks_ + num_blocks_++) Block{row, cost, static_cast<int32_t>(batch_idx), static_cast<int32_t>(end - row)};
  }
}

ForwardItem ForwardItems::operator[](int64_t idx) const {
  const Block& block = blocks_[idx / heads_kv_];
  return {block.batch_idx, idx % heads_kv_, block.row_begin, block.num_rows};
}

void fill_hidden_rows(const core::AttentionArguments& arguments, const ForwardItem& item, int64_t row_begin,
                      int64_t row_end) {
  const int64_t group = arguments.group();
  const int64_t batch_idx = std::max<int64_t>(item.batch_idx, 0);
  const int64_t row_q = item.batch_idx < 0 ? 0 : core::sequence(arguments, batch_idx).row_q;
  const size_t row_bytes = static_cast<size_t>(arguments.head_dim_v * core::size_bytes(arguments.out().dtype));
  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t tensor_row = row_q + row / group;
    const int64_t head = item.kv_head * group + row % group;
    std::memset(arguments.out().row(batch_idx, tensor_row, head), 0, row_bytes);
    if (arguments.lse().data != nullptr) {
      store_lse(arguments.lse(), batch_idx, tensor_row, head, -std::numeric_limits<double>::infinity());
    }
  }
}

}  // namespace tessella::cpu
