#include "cuda/launch/call_params.hpp"

#include <algorithm>

#include "core/element.hpp"
#include "cuda/launch/softcap.hpp"
#include "operations/attention/element_masks.hpp"
#include "portable/dropout.hpp"

namespace tessella::cuda {
namespace {

using core::AttentionArguments;
using core::Feature;
using portable::divisor;

portable::ScoreOperandParams score_operand(const core::ScoreOperand& t) {
  return {t.data, t.batch_stride, t.head_stride, t.q_stride, t.kv_stride};
}

template <typename T>
portable::TableParams table(const core::Table<T>& t) {
  return {t.data, t.batch_stride, t.stride};
}

// One value a sequence.
portable::TableParams of_sequences(const core::Table<int32_t>& t) { return {t.data, 0, t.batch_stride}; }

int32_t at_most_all(int64_t count) { return narrow(std::min<int64_t>(count, std::numeric_limits<int32_t>::max())); }

}  // namespace

portable::OperandParams operand(const core::Operand& t) {
  return {t.data, t.batch_stride, t.row_stride, t.head_stride};
}

bool rows_are_aligned(const core::Operand& out, int64_t head_dim) {
  const int64_t size = size_bytes(out.dtype);
  const auto at = static_cast<int64_t>(reinterpret_cast<uintptr_t>(out.data) % 16);
  const int64_t all = at | head_dim * size | out.batch_stride * size | out.row_stride * size | out.head_stride * size;
  return all % 16 == 0;
}

portable::InputsParams inputs_params(const AttentionArguments& p) {
  return {.head_dim_qk = narrow(p.head_dim_qk),
          .head_dim_v = narrow(p.head_dim_v),
          .q = operand(p.q()),
          .k = operand(p.k()),
          .v = operand(p.v())};
}

portable::SequencesParams sequences_params(const AttentionArguments& p) {
  portable::SequencesParams params{.batch = narrow(p.batch),
                                   .heads_q = divisor(narrow(p.heads_q)),
                                   .group = divisor(narrow(p.group())),
                                   .seqlen_q = narrow(p.seqlen_q),
                                   .seqlen_kv = narrow(p.seqlen_kv),
                                   .total_q = narrow(p.total_q),
                                   .total_kv = narrow(p.total_kv),
                                   .has_tables = 0,
                                   .seqlens_q = of_sequences(p.seqlens_q),
                                   .seqlens_kv = of_sequences(p.seqlens_kv),
                                   .leftpad_kv = of_sequences(p.leftpad_kv),
                                   .cu_seqlens_q = table(p.cu_seqlens_q),
                                   .cu_seqlens_kv = table(p.cu_seqlens_kv),
                                   .prefix = of_sequences(p.prefix),
                                   .cache_batch_idx = of_sequences(p.cache_batch_idx),
                                   .slots = narrow(p.slots),
                                   .page_table = table(p.page_table),
                                   .page_size = divisor(narrow(p.page_size)),
                                   .num_pages = narrow(p.num_pages)};
  for (const portable::TableParams* given : {&params.seqlens_q, &params.seqlens_kv, &params.leftpad_kv, &params.prefix,
                                             &params.cache_batch_idx, &params.cu_seqlens_q, &params.cu_seqlens_kv}) {
    if (given->data != nullptr) params.has_tables = 1;
  }
  return params;
}

portable::ScoresParams scores_params(const AttentionArguments& p) {
  const portable::Dropout dropout{.threshold = portable::Dropout::threshold_of(p.dropout)};
  return {.bias = score_operand(p.bias),
          .alibi_slopes = table(p.alibi_slopes),
          .sink = table(p.sink),
          .softcap = p.softcap != 0 ? softcap_params(p) : portable::SoftcapParams{},
          .scale = static_cast<float>(p.scale),
          .keep_scale = static_cast<float>(dropout.keep_scale()),
          .dropout_threshold = dropout.threshold,
          .seed_data = p.seed_data,
          .offset_data = p.offset_data,
          .seed = p.seed,
          .offset = p.offset};
}

portable::MasksParams masks_params(const AttentionArguments& p, int64_t longest) {
  return {.window_left = std::min(p.window_left, longest),
          .window_right = std::min(p.window_right, longest),
          .chunk = std::min(p.chunk, longest),
          .keep_first = at_most_all(p.keep_first),
          .causal_top_left = p.features.has(Feature::causal_top_left) ? 1 : 0,
          .elements = core::element_masks(p)};
}

portable::ArraysParams arrays_params(const AttentionArguments& p) {
  portable::ArraysParams params{};
  for (int32_t i = 0; i < p.num_arrays; ++i) params.all[i] = {p.arrays[i].data, p.arrays[i].count};
  return params;
}

portable::OutputParams output_params(const AttentionArguments& p) {
  return {.out = operand(p.out()),
          .lse = operand(p.lse()),
          .out_element = core::element(p.out_dtype()),
          .out_vector_store = rows_are_aligned(p.out(), p.head_dim_v) ? 1 : 0};
}

portable::TileMapParams tile_map_params(const TileMap& map, void* classes, void* seen_keys) {
  return {.classes = static_cast<uint8_t*>(classes),
          .batch_stride = map.batch_stride(),
          .head_stride = map.head_stride(),
          .seen_keys = static_cast<uint32_t*>(seen_keys),
          .kv_tiles = narrow(map.kv_tiles)};
}

}  // namespace tessella::cuda
