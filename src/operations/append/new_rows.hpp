// The tables of an append as portable/new_rows.hpp reads them, on the host and on a GPU.
#pragma once

#include <algorithm>

#include "operations/append/arguments.hpp"
#include "portable/new_rows.hpp"

namespace tessella::core {

inline portable::NewRowTables new_row_tables(const AppendArguments& a) {
  const auto table = [](const Table<int32_t>& t) { return portable::TableParams{t.data, t.batch_stride, t.stride}; };
  const auto narrow = [](int64_t value) { return static_cast<int32_t>(value); };
  return {.seqlens_kv = table(a.seqlens_kv),
          .seqlens_new = table(a.seqlens_new),
          .cu_seqlens_new = table(a.cu_seqlens_new),
          .leftpad_kv = table(a.leftpad_kv),
          .rotary_offsets = table(a.rotary_offsets),
          .cache_batch_idx = table(a.cache_batch_idx),
          .page_table = table(a.page_table),
          .batch = narrow(a.batch),
          .seqlen_new = portable::divisor(narrow(a.seqlen_new)),
          .total_new = narrow(a.total_new),
          .seqlen_kv = narrow(a.seqlen_kv),
          .num_slots = narrow(a.num_slots),
          .page_size = portable::divisor(narrow(a.page_size)),
          .positions = narrow(std::max<int64_t>(a.positions, 1))};
}

}  // namespace tessella::core
