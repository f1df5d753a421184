// Rows that quantize stores, on the host: the tables as portable/sequence_rows.hpp reads them, and which scales a task
// or block can compute by itself.
#pragma once

#include <algorithm>

#include "operations/quantize/arguments.hpp"
#include "portable/sequence_rows.hpp"

namespace tessella::core {

inline portable::SequenceTables sequence_tables(const QuantizeArguments& a) {
  const auto table = [](const Table<int32_t>& t) { return portable::TableParams{t.data, t.batch_stride, t.stride}; };
  const auto narrow = [](int64_t value) { return static_cast<int32_t>(value); };
  return {.cu_seqlens = table(a.cu_seqlens),
          .rotary_offsets = table(a.rotary_offsets),
          .batch = narrow(a.batch),
          .seqlen = portable::divisor(narrow(a.seqlen)),
          .total = narrow(a.total),
          .positions = narrow(std::max<int64_t>(a.positions, 1))};
}

// Whether each entry of the scales that are computed is of few rows that lie together: they are then read twice in a
// row, the second time from a cache. Otherwise the scales are computed before any row is stored.
inline bool has_small_entries(const QuantizeShape& p) {
  constexpr int64_t kMostElements = 1 << 17;
  if (!p.computes_scales || p.scale_block == 0 || p.is_transposed) return false;
  const bool is_of_one_tensor_row_range = p.is_packed ? p.batches_share || p.batch == 1 : !p.batches_share;
  const int64_t row_elements = p.head_dim * (p.heads_share ? p.heads : 1);
  return is_of_one_tensor_row_range && p.scale_block <= kMostElements / row_elements;
}

}  // namespace tessella::core
