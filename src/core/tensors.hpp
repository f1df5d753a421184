// The one list of what a call's arguments point to, but seed, offset and mod_args, which have no strides: what copies
// them to the host, and the list of a call's memory (core/call_memory.hpp), walks it. Absent ones are left out. A and
// F: (const) AttentionArguments, and f(name, member, sizes...) with overloads for
//   Table<T>      sizes: batch, count
//   Operand       sizes: batch, rows, heads, dim
//   ScoreOperand, ScoreGradient  sizes: queries, keys    of the tensor's own axes
#pragma once

#include "core/arguments.hpp"
#include "core/fields.hpp"

namespace tessella::core {

// Lengths, offsets, slots and pages: what validate() reads.
template <typename A, typename F>
void length_tables(A& a, F&& f) {
  for (const SequenceTable& table : kSequenceTables) {
    if (a.*table.member) f(table.name, a.*table.member, a.batch, 1);
  }
  if (a.cu_seqlens_q) f("cu_seqlens_q", a.cu_seqlens_q, 1, a.batch + 1);
  if (a.cu_seqlens_kv) f("cu_seqlens_kv", a.cu_seqlens_kv, 1, a.batch + 1);
  if (a.page_table) f("page_table", a.page_table, a.batch, a.seqlen_kv / a.page_size);
}

// f(Name, Operand, batch, rows, heads, dim).
template <typename A, typename F>
void operands(A& a, F&& f) {
  const auto [batch_q, rows_q] = a.axes_q();
  const auto [batch_kv, rows_kv] = a.axes_kv();
  const auto visit = [&](Name name, auto batch, auto rows, int64_t heads, int64_t dim) {
    auto& operand = a.tensors[name];
    if (operand.data != nullptr) f(name, operand, batch, rows, heads, dim);
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
    visit(name, axes.batch, axes.rows, is_of_keys ? a.heads_kv : a.heads_q, 1);
  }
}

// Calls f for the tensors that scores and masks read.
template <typename A, typename F>
void score_tensors(A& a, F&& f) {
  if (a.bias.data != nullptr) f("bias", a.bias, a.seqlen_q, a.seqlen_kv);
  if (a.alibi_slopes) f("alibi_slopes", a.alibi_slopes, a.batch, a.heads_q);
  if (a.sink) f("sink", a.sink, 1, a.heads_q);
  if (a.dense_mask.data != nullptr) f("dense_mask", a.dense_mask, a.seqlen_q, a.seqlen_kv);
  if (a.block_map.data != nullptr) {
    const auto blocks = [](int64_t count, int64_t block) { return count / block + (count % block != 0); };
    f("block_map", a.block_map, blocks(a.seqlen_q, a.block_q), blocks(a.seqlen_kv, a.block_kv));
  }
  if (a.draft_mask.data != nullptr) f("draft_mask", a.draft_mask, a.seqlen_q, a.seqlen_q);
  if (a.document_q) f("document_ids_q", a.document_q, a.axes_q().batch, a.total_q);
  if (a.document_kv) f("document_ids_kv", a.document_kv, a.features.has(Feature::packed_kv) ? 1 : a.batch, a.total_kv);
}

// Gradients of what scores read.
template <typename A, typename F>
void score_gradients(A& a, F&& f) {
  if (a.d_bias.data != nullptr) f("d_bias", a.d_bias, a.d_bias.queries, a.d_bias.keys);
  if (a.d_sink.data != nullptr) f("d_sink", a.d_sink, 1, 1);
  if (a.d_alibi_slopes.data != nullptr) f("d_alibi_slopes", a.d_alibi_slopes, 1, 1);
}

// The states that are merged: f(FieldName, Operand, head_dim or 1).
template <typename A, typename F>
void merge_inputs(A& a, F&& f) {
  for (int i = 0; i < a.num_states; ++i) {
    auto& state = a.given[static_cast<size_t>(i)];
    f(FieldName{"outs", nullptr, i}, state.out, a.head_dim);
    f(FieldName{"lses", nullptr, i}, state.lse, int64_t{1});
  }
}

// Rows that an append moves, and the names of what they come from and go into.
struct AppendedNames {
  const char* from;
  const char* into;
  const char* scale;
  bool is_cache;    // into a cache; q goes into q_out, row by row
  bool is_rotated;  // if anything is
};
// f(AppendedNames, RowsShape, Rows) of those that are given.
template <typename A, typename F>
void appended_rows(A& a, F&& f) {
  if (a.k_new.heads > 0) f(AppendedNames{"k_new", "k", "k_scale", true, true}, a.k_new, a.k_rows);
  if (a.v_new.heads > 0) f(AppendedNames{"v_new", "v", "v_scale", true, false}, a.v_new, a.v_rows);
  if (a.q.heads > 0) f(AppendedNames{"q", "q_out", "", false, true}, a.q, a.q_rows);
}

// Calls f(name, Operand, is_written, batch, rows, heads, dim) for the tensors that append reads and writes.
template <typename A, typename F>
void append_operands(A& a, F&& f) {
  const bool is_packed = static_cast<bool>(a.cu_seqlens_new);
  const int64_t batch = is_packed ? 1 : a.batch;
  const int64_t rows_of_slot = a.rows_of_slot();
  appended_rows(a, [&](const AppendedNames& names, const RowsShape& shape, auto& rows) {
    f(names.from, rows.from, false, batch, a.total_new, shape.heads, shape.head_dim);
    if (names.is_cache) {
      f(names.into, rows.into, true, a.num_slots, rows_of_slot, shape.heads, shape.head_dim);
      if (rows.scale.data != nullptr) {
        const bool is_written = a.scale_block != 0;
        f(names.scale, rows.scale, is_written, a.num_slots, is_written ? rows_of_slot : 1, shape.heads, int64_t{1});
      }
    } else {
      f(names.into, rows.into, true, batch, a.total_new, shape.heads, shape.head_dim);
    }
  });
  if (a.rotary_dim == 0) return;
  f("rotary_cos", a.cos, false, int64_t{1}, a.positions, int64_t{1}, a.rotary_dim / 2);
  f("rotary_sin", a.sin, false, int64_t{1}, a.positions, int64_t{1}, a.rotary_dim / 2);
}

// Lengths, offsets and pages of an append: f(name, Table, batch, count).
template <typename A, typename F>
void append_tables(A& a, F&& f) {
  f("seqlens_kv", a.seqlens_kv, a.batch, 1);
  if (a.seqlens_new) f("seqlens_new", a.seqlens_new, a.batch, 1);
  if (a.cu_seqlens_new) f("cu_seqlens_new", a.cu_seqlens_new, 1, a.batch + 1);
  if (a.page_table) f("page_table", a.page_table, a.batch, a.seqlen_kv / a.page_size);
  if (a.cache_batch_idx) f("cache_batch_idx", a.cache_batch_idx, a.batch, 1);
  if (a.leftpad_kv) f("leftpad_kv", a.leftpad_kv, a.batch, 1);
  if (a.rotary_offsets) f("rotary_offsets", a.rotary_offsets, a.batch, 1);
}

// Calls f(name, Operand, is_written, batch, rows, heads, dim) for the tensors that quantize and dequantize read and
// write. The axes of scales are those of their entries.
template <typename A, typename F>
void quantize_operands(A& a, F&& f) {
  const bool is_quantize = a.operation == Operation::quantize;
  const auto rows = [&](const char* name, auto& t, bool is_written, bool is_transposed) {
    if (is_transposed) {
      f(name, t, is_written, a.batch, a.head_dim, a.heads, a.padded());
    } else {
      f(name, t, is_written, a.tensor_batch(), a.total, a.heads, a.head_dim);
    }
  };
  rows("x", a.from, false, a.is_transposed && !is_quantize);
  rows("out", a.into, true, a.is_transposed && is_quantize);
  if (a.scale.data != nullptr) {
    const auto entries = a.entries();
    f("scale", a.scale, a.computes_scales, entries.batch, entries.blocks, entries.heads, int64_t{1});
  }
  if (a.mean.data != nullptr) f("mean", a.mean, is_quantize, a.batch, int64_t{1}, a.heads, a.head_dim);
  if (a.k_mean.data != nullptr) f("k_mean", a.k_mean, false, a.batch, int64_t{1}, a.mean_heads, a.head_dim);
  if (a.lse_shift.data != nullptr) {
    f("lse_shift", a.lse_shift, true, a.tensor_batch(), a.total, a.heads, int64_t{1});
  }
  if (a.rotary_dim == 0) return;
  f("rotary_cos", a.cos, false, int64_t{1}, a.positions, int64_t{1}, a.rotary_dim / 2);
  f("rotary_sin", a.sin, false, int64_t{1}, a.positions, int64_t{1}, a.rotary_dim / 2);
}

// Offsets of quantize and dequantize: f(name, Table, batch, count).
template <typename A, typename F>
void quantize_tables(A& a, F&& f) {
  if (a.cu_seqlens) f("cu_seqlens", a.cu_seqlens, 1, a.batch + 1);
  if (a.rotary_offsets) f("rotary_offsets", a.rotary_offsets, a.batch, 1);
}

// f(FieldName, Pool) for every pool.
template <typename A, typename F>
void copied_pools(A& a, F&& f) {
  for (size_t i = 0; i < a.given.size(); ++i) f(FieldName{"pools", nullptr, static_cast<int>(i)}, a.given[i]);
}

}  // namespace tessella::core
