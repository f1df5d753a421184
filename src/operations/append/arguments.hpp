// The arguments of append.
#pragma once

#include <cstdint>

#include "core/access.hpp"
#include "core/arguments.hpp"
#include "core/operand.hpp"
#include "operations/append/shape.hpp"

namespace tessella::core {

// Rows that an append moves, and the names of what they come from and go into.
struct AppendedNames {
  const char* from;
  const char* into;
  const char* scale;
  bool is_cache;    // into a cache; q goes into q_out, row by row
  bool is_rotated;  // if anything is
};

struct AppendArguments : AppendShape {
  // new: (batch, seqlen_new, heads, head_dim). into: the cache, (slots, seqlen_kv, heads, head_dim) or (num_pages,
  // page_size, ...); of q: q_out, which has the axes of q.
  struct Rows {
    Operand from, into;
    Operand scale;  // of a quantised cache: (slots or pages, 1 or rows, heads, 1), f32; without data there are none
  };
  Rows k_rows, v_rows, q_rows;
  Operand cos, sin;                // (1, positions, 1, rotary_dim / 2), f32 or the dtype of the rows
  int64_t positions = 0;           // that have an angle
  Table<int32_t> seqlens_kv;       // (batch) valid lengths of the cache, new rows included
  Table<int32_t> seqlens_new;      // (batch) rows that are new, the first ones
  Table<int32_t> cu_seqlens_new;   // (batch + 1) first row of each sequence in the packed tensors
  Table<int32_t> page_table;       // (batch, seqlen_kv / page_size)
  Table<int32_t> cache_batch_idx;  // (batch) slot of each sequence in the cache
  Table<int32_t> leftpad_kv;       // (batch)
  Table<int32_t> rotary_offsets;   // (batch) added to positions
  int64_t num_slots = 0;           // of k and of v; paged: pages
  int64_t seqlen_kv = 0;           // rows that a sequence may have in the cache
  int64_t page_size = 0;           // 0: they are not paged
  const int32_t* cancel = nullptr;

  int64_t tokens() const { return cu_seqlens_new ? total_new : batch * seqlen_new; }
  int64_t rows_of_slot() const { return page_size > 0 ? page_size : seqlen_kv; }

  // f(AppendedNames, RowsShape, Rows) of the rows that are given.
  template <typename A, typename F>
  static void appended_rows(A& a, F&& f) {
    if (a.k_new.heads > 0) f(AppendedNames{"k_new", "k", "k_scale", true, true}, a.k_new, a.k_rows);
    if (a.v_new.heads > 0) f(AppendedNames{"v_new", "v", "v_scale", true, false}, a.v_new, a.v_rows);
    if (a.q.heads > 0) f(AppendedNames{"q", "q_out", "", false, true}, a.q, a.q_rows);
  }

  // Fills the members of the call's shape that follow from its operands.
  void derive_shape();

  // All that the arguments point to (core/call_memory.hpp); what is absent may be left out.
  template <typename A, typename F>
  static void memory(A& a, F&& f) {
    const int64_t batch = a.cu_seqlens_new ? 1 : a.batch;
    const int64_t rows_of_slot = a.rows_of_slot();
    appended_rows(a, [&](const AppendedNames& names, const RowsShape& shape, auto& rows) {
      f(FieldName{names.from}, rows.from, Access::read, batch, a.total_new, shape.heads, shape.head_dim);
      if (names.is_cache) {
        f(FieldName{names.into}, rows.into, Access::written, a.num_slots, rows_of_slot, shape.heads, shape.head_dim);
        if (rows.scale.data != nullptr) {
          const bool is_written = a.scale_block != 0;
          f(FieldName{names.scale}, rows.scale, is_written ? Access::written : Access::read, a.num_slots,
            is_written ? rows_of_slot : 1, shape.heads, int64_t{1});
        }
      } else {
        f(FieldName{names.into}, rows.into, Access::written, batch, a.total_new, shape.heads, shape.head_dim);
      }
    });
    if (a.rotary_dim > 0) {
      f(FieldName{"rotary_cos"}, a.cos, Access::read, int64_t{1}, a.positions, int64_t{1}, a.rotary_dim / 2);
      f(FieldName{"rotary_sin"}, a.sin, Access::read, int64_t{1}, a.positions, int64_t{1}, a.rotary_dim / 2);
    }
    const auto table = [&](const char* name, auto& t, int64_t outer, int64_t count) {
      if (t) f(FieldName{name}, t, Access::table, outer, count);
    };
    table("seqlens_kv", a.seqlens_kv, a.batch, 1);
    table("seqlens_new", a.seqlens_new, a.batch, 1);
    table("cu_seqlens_new", a.cu_seqlens_new, 1, a.batch + 1);
    table("page_table", a.page_table, a.batch, a.page_size > 0 ? a.seqlen_kv / a.page_size : 0);
    table("cache_batch_idx", a.cache_batch_idx, a.batch, 1);
    table("leftpad_kv", a.leftpad_kv, a.batch, 1);
    table("rotary_offsets", a.rotary_offsets, a.batch, 1);
    f(FieldName{"cancel"}, Bytes::of(a.cancel), Access::read);
  }
};

inline const AppendArguments& append(const Arguments& arguments) { return arguments.as<AppendArguments>(); }

}  // namespace tessella::core
