#include "cuda/launch/forward_arguments.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/element.hpp"
#include "core/message.hpp"
#include "cuda/launch/softcap.hpp"
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

std::string lacks(const core::AttentionShape& p, int32_t shared_bytes, const DeviceInfo& device) {
  if (shared_bytes > device.shared_bytes_per_block) {
    return core::message("needs ", shared_bytes, " bytes of shared memory, and the GPU has ",
                         device.shared_bytes_per_block);
  }
  return takes_all_sms(p.num_sms, device);
}

std::string lacks_hopper(const DeviceInfo& device) {
  if (device.arch == 90) return "";
  return core::message("runs on Hopper (sm_90), and GPU ", device.id, " (", device.name, ") is sm_", device.arch);
}

std::string too_large(const core::AttentionShape& p, const ForwardTiles& tiles) {
  const TileMap map = largest_tile_map(p, tiles);
  for (const auto& [what, count] : {std::pair{"batch * heads_q * seqlen_q", forward_blocks(p, map)},
                                    std::pair{"batch * heads_q * seqlen_q * seqlen_kv", map.bytes()}}) {
    if (count > kMaxBlocks) {
      return core::message(what, " makes ", count, " tiles of ", tiles.tile_q, " x ", tiles.tile_kv, ", at most ",
                           kMaxBlocks);
    }
  }
  return "";
}

int64_t forward_blocks(const core::AttentionShape& p, const TileMap& map) { return map.tiles_q * all_heads(p); }

bool has_rows(const core::AttentionShape& p, const TileMap& map) { return forward_blocks(p, map) > 0 && p.total_q > 0; }

portable::ForwardParams forward_params(const AttentionArguments& p, const ForwardTiles& tiles, const TileMap& map,
                                       void* map_data, const Concurrency& at_once) {
  portable::ForwardParams params{};
  params.q = operand(p.q());
  params.k = operand(p.k());
  params.v = operand(p.v());
  params.out = operand(p.out());
  params.lse = operand(p.lse());
  params.seqlens_q = of_sequences(p.seqlens_q);
  params.seqlens_kv = of_sequences(p.seqlens_kv);
  params.leftpad_kv = of_sequences(p.leftpad_kv);
  params.prefix = of_sequences(p.prefix);
  params.cache_batch_idx = of_sequences(p.cache_batch_idx);
  params.cu_seqlens_q = table(p.cu_seqlens_q);
  params.cu_seqlens_kv = table(p.cu_seqlens_kv);
  for (const portable::TableParams* given : {&params.seqlens_q, &params.seqlens_kv, &params.leftpad_kv, &params.prefix,
                                             &params.cache_batch_idx, &params.cu_seqlens_q, &params.cu_seqlens_kv}) {
    if (given->data != nullptr) params.has_tables = 1;
  }
  params.page_table = table(p.page_table);
  params.alibi_slopes = table(p.alibi_slopes);
  params.sink = table(p.sink);
  params.document_q = table(p.document_q);
  params.document_kv = table(p.document_kv);
  params.bias = score_operand(p.bias);
  params.dense_mask = score_operand(p.dense_mask);
  params.block_map = score_operand(p.block_map);
  params.draft_mask = score_operand(p.draft_mask);
  for (int32_t i = 0; i < p.num_arrays; ++i) params.arrays[i] = {p.arrays[i].data, p.arrays[i].count};
  params.seed_data = p.seed_data;
  params.offset_data = p.offset_data;
  params.tile_map = static_cast<uint8_t*>(map_data);
  params.tile_map_batch_stride = map.batch_stride();
  params.tile_map_head_stride = map.head_stride();
  if (tiles.score.mask == portable::MaskLevel::bits) params.mask_map = static_cast<uint32_t*>(p.schedule);
  params.window_left = p.window_left;
  params.window_right = p.window_right;
  params.chunk = p.chunk;
  params.seed = p.seed;
  params.offset = p.offset;
  params.batch = narrow(p.batch);
  params.heads_q = divisor(narrow(p.heads_q));
  params.group = divisor(narrow(p.group()));
  params.head_dim_qk = narrow(p.head_dim_qk);
  params.head_dim_v = narrow(p.head_dim_v);
  params.seqlen_q = narrow(p.seqlen_q);
  params.seqlen_kv = narrow(p.seqlen_kv);
  params.total_q = narrow(p.total_q);
  params.total_kv = narrow(p.total_kv);
  params.page_size = divisor(narrow(p.page_size));
  params.num_pages = narrow(p.num_pages);
  params.slots = narrow(p.slots);
  params.tiles_q = narrow(map.tiles_q);
  params.slices_v = slices_v(p, tiles);
  const Sections of_heads = sections(p, map.tiles_q, at_once);
  params.heads_per_section = divisor(narrow(of_heads.heads));
  params.tiles_per_section = divisor(narrow(of_heads.heads * map.tiles_q));
  params.first_of_last_section = narrow(of_heads.first_of_last);
  params.heads_of_last_section = divisor(narrow(all_heads(p) - of_heads.first_of_last));
  params.kv_tiles = narrow(map.kv_tiles);
  const auto at_most_all = [](int64_t count) {
    return narrow(std::min<int64_t>(count, std::numeric_limits<int32_t>::max()));
  };
  params.block_map_q = divisor(at_most_all(p.block_q));
  params.block_map_kv = divisor(at_most_all(p.block_kv));
  params.keep_first = at_most_all(p.keep_first);
  params.scale = static_cast<float>(p.scale);
  if (p.softcap != 0) params.softcap = softcap_params(p);
  const portable::Dropout dropout{.threshold = portable::Dropout::threshold_of(p.dropout)};
  params.keep_scale = static_cast<float>(dropout.keep_scale());
  params.dropout_threshold = dropout.threshold;
  params.causal_top_left = p.features.has(Feature::causal_top_left) ? 1 : 0;
  params.out_element = core::element(p.out_dtype());
  params.out_vector_store = rows_are_aligned(p.out(), p.head_dim_v) ? 1 : 0;
  return params;
}

}  // namespace tessella::cuda
