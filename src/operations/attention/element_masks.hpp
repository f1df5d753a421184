// The element masks of a call, as portable/element_masks.hpp reads them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/features.hpp"
#include "core/limits.hpp"
#include "operations/attention/arguments.hpp"
#include "portable/element_masks.hpp"

namespace tessella::core {

constexpr portable::ElementMaskSet element_mask_set(Features features) {
  return {.documents = features.has(Feature::document),
          .dense_mask = features.has(Feature::dense_mask),
          .block_map = features.has(Feature::block_map),
          .draft_mask = features.has(Feature::draft_mask),
          .key_ranges = features.has(Feature::key_ranges),
          .query_ranges = features.has(Feature::query_ranges)};
}

inline portable::ElementMasks element_masks(const AttentionArguments& p) {
  const auto tensor = [](const ScoreOperand& t) {
    return portable::MaskTensor{reinterpret_cast<const uint8_t*>(t.data), t.batch_stride, t.head_stride, t.q_stride,
                                t.kv_stride};
  };
  const auto ids = [](const Table<int32_t>& t) { return portable::Documents::Ids{t.data, t.batch_stride, t.stride}; };
  const auto ranges = [](const RangeOperand& t) {
    return portable::Ranges{t.data, t.batch_stride, t.head_stride, t.row_stride, static_cast<int32_t>(t.count)};
  };
  // Entries larger than any sequence are as good as one as long.
  const auto block = [](int64_t rows) {
    return portable::divisor(static_cast<int32_t>(std::min<int64_t>(rows, kMostCount)));
  };
  return {.documents = {.q = ids(p.document_q), .kv = ids(p.document_kv)},
          .dense_mask = {tensor(p.dense_mask)},
          .block_map = {tensor(p.block_map), block(p.block_q), block(p.block_kv)},
          .draft_mask = {tensor(p.draft_mask)},
          .key_ranges = {ranges(p.key_ranges)},
          .query_ranges = {ranges(p.query_ranges)}};
}

}  // namespace tessella::core
