// The arguments of attention: forward and backward.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/access.hpp"
#include "core/arguments.hpp"
#include "core/operand.hpp"
#include "operations/attention/shape.hpp"

namespace tessella::core {

// The gradients of a backward call; the values are tessella_gradient of tessella.h.
enum class Gradient : uint32_t { dq = 1, dk = 2, dv = 4, d_bias = 8, d_sink = 16, d_alibi_slopes = 32 };

struct AttentionArguments : AttentionShape {
  // q (batch, seqlen_q, heads_q, head_dim_qk); k, v (batch or slots, seqlen_kv, heads_kv, head dim) or (num_pages,
  // page_size, ...); out (batch, seqlen_q, heads_q, head_dim_v); lse (batch, seqlen_q, heads_q, 1), f32, or f64 beside
  // f64; gradients as what they are of, d_lse as lse; scales and amax (batch or page, ceil(rows / scale_block), heads,
  // 1), f32: axes of 1 have stride 0.
  ByName<Operand> tensors;
  Table<int32_t> seqlens_q;        // (batch) valid lengths
  Table<int32_t> seqlens_kv;       // (batch) valid lengths, left padding included
  Table<int32_t> leftpad_kv;       // (batch) first valid slot
  Table<int32_t> cu_seqlens_q;     // (batch + 1) first row of each sequence in the packed tensor
  Table<int32_t> cu_seqlens_kv;    // (batch + 1)
  Table<int32_t> page_table;       // (batch, seqlen_kv / page_size) pages of a sequence, in its order
  int64_t num_pages = 0;           // of k and of v
  Table<int32_t> cache_batch_idx;  // (batch) the slot of k and v that holds a sequence's rows
  int64_t slots = 0;               // with cache_batch_idx, of k and of v
  ScoreOperand bias;               // f32, or the dtype of q
  Table<float> alibi_slopes;       // (batch, heads_q)
  Table<float> sink;               // (heads_q), in at(0, head)
  ScoreOperand dense_mask;         // bool
  ScoreOperand block_map;          // bool, one entry a tile of block_q x block_kv
  ScoreOperand draft_mask;         // bool, (batch, query, drafted key); heads have stride 0
  Table<int32_t> document_q;       // (batch, row); packed: batch stride 0, row of the packed tensor
  Table<int32_t> document_kv;      // (batch, slot)
  Table<int32_t> prefix;           // (batch)
  RangeOperand key_ranges;         // of slots, for each row of q; packed: batch stride 0
  RangeOperand query_ranges;       // of queries, for each row of k
  int64_t block_q = 0;
  int64_t block_kv = 0;
  int64_t window_left = -1;
  int64_t window_right = -1;
  int64_t chunk = 0;
  int64_t keep_first = 0;
  double scale = 0;  // of f64 calls; else a float
  float softcap = 0;
  float dropout = 0;
  uint64_t seed = 0;
  uint64_t offset = 0;
  const int64_t* seed_data = nullptr;  // where the seed lives; on a GPU it replaces `seed`
  const int64_t* offset_data = nullptr;
  int32_t num_arrays = 0;
  UserArray arrays[kMaxUserArrays];
  int64_t first_batch = 0;  // where the call's slice begins in the whole
  int64_t first_head = 0;
  int64_t first_query = 0;
  int64_t first_key = 0;
  int64_t whole_heads_q = 0;        // query heads of the whole; 0: heads_q
  const int32_t* cancel = nullptr;  // a flag on the host; not zero: the call is to end
  void* schedule = nullptr;         // on a GPU, as the plan's kernel made it
  int64_t schedule_bytes = 0;
  const void* mask_map = nullptr;  // likewise
  int64_t mask_map_bytes = 0;
  // Nothing that the call reads is written by the kernel queued just before, but q.
  bool cache_is_settled = false;

  // For backward; out and lse are then inputs.
  ScoreGradient d_bias;          // f32, or the dtype of bias
  ScoreGradient d_sink;          // (heads_q), f32
  ScoreGradient d_alibi_slopes;  // (heads_q) or (batch, heads_q), f32
  uint32_t accumulate = 0;       // gradients that are added to what is there: bits of Gradient

  Operand& q() { return tensors[Name::q]; }
  Operand& k() { return tensors[Name::k]; }
  Operand& v() { return tensors[Name::v]; }
  Operand& out() { return tensors[Name::out]; }
  Operand& lse() { return tensors[Name::lse]; }
  const Operand& q() const { return tensors[Name::q]; }
  const Operand& k() const { return tensors[Name::k]; }
  const Operand& v() const { return tensors[Name::v]; }
  const Operand& out() const { return tensors[Name::out]; }
  const Operand& lse() const { return tensors[Name::lse]; }

  // Fills the members of the call's shape that follow from its operands, masks and arrays.
  void derive_shape();
  // Fills the members that follow from masks alone: is_contiguous, window_keys and rows_grow.
  void derive_mask_shape();

  bool wants(Name gradient) const { return tensors[gradient].data != nullptr; }
  // Gradients that go over all scores: of operands or of ALiBi's slopes.
  bool wants_scores() const {
    return wants(Name::dq) || wants(Name::dk) || wants(Name::dv) || d_alibi_slopes.data != nullptr;
  }
  bool accumulates(Gradient gradient) const { return (accumulate & static_cast<uint32_t>(gradient)) != 0; }

  // The first two axes of q, out and lse; of k and v.
  struct Axes {
    int64_t batch, rows;
  };
  Axes axes_q() const { return {features.has(Feature::packed_q) ? 1 : batch, total_q}; }
  Axes axes_kv() const {
    if (features.has(Feature::paged_kv)) return {num_pages, page_size};
    if (features.has(Feature::cache_batch_idx)) return {slots, total_kv};
    return {features.has(Feature::packed_kv) ? 1 : batch, total_kv};
  }
  // Axes of the scales of a tensor with these axes: one scale for each block of rows; in a packed tensor blocks run
  // over all sequences.
  Axes scale_axes(Axes axes, bool is_packed) const {
    const int64_t blocks = scale_block == 0 ? 1 : axes.rows / scale_block + (axes.rows % scale_block != 0);
    return {is_packed && blocks == 1 ? batch : axes.batch, blocks};
  }
  // The page of a row; row_idx counts as Sequence::row_kv does. Kernels load keys in tiles, which may begin in an
  // evicted page (-1): page 0 stands in for it, as no query sees its rows.
  int64_t page_of(int64_t batch_idx, int64_t row_idx) const {
    return std::max(page_table.at(batch_idx, row_idx / page_size), int32_t{0});
  }
  // First element of one row of one head of t, which is k or v.
  std::byte* row_of(const Operand& t, int64_t batch_idx, int64_t row_idx, int64_t head_idx) const {
    if (page_table) return t.row(page_of(batch_idx, row_idx), row_idx % page_size, head_idx);
    return t.row(cache_batch_idx ? cache_batch_idx.at(batch_idx) : batch_idx, row_idx, head_idx);
  }
  // The scale of that row's elements. t: k_scale or v_scale, which must be given.
  const std::byte* scale_of(const Operand& t, int64_t batch_idx, int64_t row_idx, int64_t head_idx) const {
    const auto block = [&](int64_t row) { return scale_block == 0 ? 0 : row / scale_block; };
    if (page_table) return t.row(page_of(batch_idx, row_idx), block(row_idx % page_size), head_idx);
    return t.row(cache_batch_idx ? cache_batch_idx.at(batch_idx) : batch_idx, block(row_idx), head_idx);
  }
  // The same of q and out: q_scale, out_scale or amax.
  std::byte* scale_of_q(const Operand& t, int64_t batch_idx, int64_t row_idx, int64_t head_idx) const {
    return t.row(batch_idx, scale_block == 0 ? 0 : row_idx / scale_block, head_idx);
  }

  // Seeds that lie in memory, on the host.
  void read_seeds() {
    if (seed_data != nullptr) seed = static_cast<uint64_t>(*seed_data);
    if (offset_data != nullptr) offset = static_cast<uint64_t>(*offset_data);
  }

  // Of what was made before the call.
  int64_t made_bytes() const { return features.has(Feature::mask_map) ? mask_map_bytes : schedule_bytes; }

  // All that the arguments point to (core/call_memory.hpp); what is absent may be left out.
  template <typename A, typename F>
  static void memory(A& a, F&& f);
};

// The tables that have a number for each sequence, as tessella_forward_args names them. least: of its numbers, where
// that is all that validate() asks.
struct SequenceTable {
  const char* name;
  Table<int32_t> AttentionArguments::*member;
  Feature feature;
  int32_t least = std::numeric_limits<int32_t>::min();
};
inline constexpr SequenceTable kSequenceTables[] = {
    {"seqlens_q", &AttentionArguments::seqlens_q, Feature::seqlens_q},
    {"seqlens_kv", &AttentionArguments::seqlens_kv, Feature::seqlens_kv},
    {"leftpad_kv", &AttentionArguments::leftpad_kv, Feature::leftpad_kv},
    {"prefix_lengths", &AttentionArguments::prefix, Feature::prefix, 0},
    {"cache_batch_idx", &AttentionArguments::cache_batch_idx, Feature::cache_batch_idx},
};

namespace detail {

// Lengths, offsets, slots, pages and ranges: what validate_tables() reads.
template <typename A, typename F>
void length_tables(A& a, F&& f) {
  const auto table = [&](const char* name, auto& t, int64_t outer, int64_t count) {
    if (t) f(FieldName{name}, t, Access::table, outer, count);
  };
  for (const SequenceTable& of : kSequenceTables) table(of.name, a.*of.member, a.batch, 1);
  table("cu_seqlens_q", a.cu_seqlens_q, 1, a.batch + 1);
  table("cu_seqlens_kv", a.cu_seqlens_kv, 1, a.batch + 1);
  table("page_table", a.page_table, a.batch, a.page_size > 0 ? a.seqlen_kv / a.page_size : 0);
  const auto ranges = [&](const char* name, auto& t, int64_t batch, int64_t rows) {
    if (t.data != nullptr) f(FieldName{name}, t, Access::table, batch, a.heads_q, rows);
  };
  ranges("key_ranges", a.key_ranges, a.axes_q().batch, a.total_q);
  ranges("query_ranges", a.query_ranges, a.features.has(Feature::packed_kv) ? 1 : a.batch, a.total_kv);
}

// q, k, v, what they become, their gradients and scales.
template <typename A, typename F>
void operands(A& a, F&& f) {
  const auto [batch_q, rows_q] = a.axes_q();
  const auto [batch_kv, rows_kv] = a.axes_kv();
  const auto visit = [&](Name operand, auto batch, auto rows, int64_t heads, int64_t dim) {
    auto& t = a.tensors[operand];
    if (t.dtype == DType::none) return;
    const bool is_gradient = operand == Name::dq || operand == Name::dk || operand == Name::dv;
    const bool is_result = operand == Name::out || operand == Name::lse || operand == Name::amax;
    const bool is_written = a.operation == Operation::backward ? is_gradient : is_result;
    f(FieldName{name(operand)}, t, is_written ? Access::written : Access::read, batch, rows, heads, dim);
  };
  visit(Name::q, batch_q, rows_q, a.heads_q, a.head_dim_qk);
  visit(Name::k, batch_kv, rows_kv, a.heads_kv, a.head_dim_qk);
  if (a.features.has(Feature::transposed_v)) {
    visit(Name::v, batch_kv, a.head_dim_v, a.heads_kv, whole_tiles(rows_kv));
  } else {
    visit(Name::v, batch_kv, rows_kv, a.heads_kv, a.head_dim_v);
  }
  visit(Name::out, batch_q, rows_q, a.heads_q, a.head_dim_v);
  visit(Name::lse, batch_q, rows_q, a.heads_q, 1);
  visit(Name::d_out, batch_q, rows_q, a.heads_q, a.head_dim_v);
  visit(Name::d_lse, batch_q, rows_q, a.heads_q, 1);
  visit(Name::dq, batch_q, rows_q, a.heads_q, a.head_dim_qk);
  visit(Name::dk, batch_kv, rows_kv, a.heads_kv, a.head_dim_qk);
  visit(Name::dv, batch_kv, rows_kv, a.heads_kv, a.head_dim_v);
  if (!a.features.has_any(Feature::scales | Feature::kv_scales)) return;
  for (const Name name : {Name::q_scale, Name::k_scale, Name::v_scale, Name::out_scale, Name::amax}) {
    const bool is_of_keys = name == Name::k_scale || name == Name::v_scale;
    const auto axes = is_of_keys ? a.scale_axes(a.axes_kv(), a.features.has(Feature::packed_kv))
                                 : a.scale_axes(a.axes_q(), a.features.has(Feature::packed_q));
    const Operand& t = a.tensors[name];  // over an axis of stride 0 there is one entry
    const auto entries = [](int64_t stride, int64_t size) { return stride == 0 ? std::min<int64_t>(size, 1) : size; };
    visit(name, entries(t.batch_stride, axes.batch), entries(t.row_stride, axes.rows),
          entries(t.head_stride, is_of_keys ? a.heads_kv : a.heads_q), 1);
  }
}

// What scores and masks read, and the gradients of that.
template <typename A, typename F>
void score_tensors(A& a, F&& f) {
  const auto scores = [&](const char* name, auto& t, Access access, int64_t queries, int64_t keys) {
    if (t.data != nullptr) f(FieldName{name}, t, access, a.batch, a.heads_q, queries, keys);
  };
  const auto table = [&](const char* name, auto& t, int64_t outer, int64_t count) {
    if (t) f(FieldName{name}, t, Access::read, outer, count);
  };
  scores("bias", a.bias, Access::read, a.seqlen_q, a.seqlen_kv);
  table("alibi_slopes", a.alibi_slopes, a.batch, a.heads_q);
  table("sink", a.sink, 1, a.heads_q);
  scores("dense_mask", a.dense_mask, Access::read, a.seqlen_q, a.seqlen_kv);
  if (a.block_map.data != nullptr) {
    const auto blocks = [](int64_t count, int64_t block) { return count / block + (count % block != 0); };
    scores("block_map", a.block_map, Access::read, blocks(a.seqlen_q, a.block_q), blocks(a.seqlen_kv, a.block_kv));
  }
  scores("draft_mask", a.draft_mask, Access::read, a.seqlen_q, a.seqlen_q);
  table("document_ids_q", a.document_q, a.axes_q().batch, a.total_q);
  table("document_ids_kv", a.document_kv, a.features.has(Feature::packed_kv) ? 1 : a.batch, a.total_kv);
  scores("d_bias", a.d_bias, Access::written, a.d_bias.queries, a.d_bias.keys);
  scores("d_sink", a.d_sink, Access::written, 1, 1);
  scores("d_alibi_slopes", a.d_alibi_slopes, Access::written, 1, 1);
}

}  // namespace detail

template <typename A, typename F>
void AttentionArguments::memory(A& a, F&& f) {
  detail::operands(a, f);
  detail::length_tables(a, f);
  detail::score_tensors(a, f);
  f(FieldName{"schedule"}, Bytes{a.schedule, a.schedule_bytes}, Access::written);  // runs count in it
  f(FieldName{"mask_map"}, Bytes{a.mask_map, a.mask_map_bytes}, Access::read);
  f(FieldName{"seed"}, a.seed_data, Access::read);
  f(FieldName{"offset"}, a.offset_data, Access::read);
  for (int32_t i = 0; i < a.num_arrays; ++i) {
    const UserArray& array = a.arrays[i];
    f(FieldName{"mod_args", nullptr, i}, Bytes{array.data, array.count * size_bytes(array.dtype)}, Access::read);
  }
  f(FieldName{"cancel"}, Bytes::of(a.cancel), Access::read);
}

inline const AttentionArguments& attention(const Arguments& arguments) { return arguments.as<AttentionArguments>(); }

}  // namespace tessella::core
