// Calls f for the memory of each argument of a call. The checks that outputs and the workspace do not overlap use it.
#pragma once

#include "core/arguments.hpp"
#include "core/fields.hpp"
#include "core/memory_range.hpp"
#include "core/tensors.hpp"

namespace tessella::core {

enum class Access { read, written };

namespace detail {

template <typename T>
MemoryBox memory_box(const Table<T>& t, int64_t batch, int64_t count) {
  constexpr int64_t kBytes = sizeof(T);
  return core::memory_box(t.data, kBytes, {{{batch, t.batch_stride * kBytes}, {count, t.stride * kBytes}, {}, {}}});
}

template <typename T>
MemoryBox memory_box(const AttentionArguments&, const Table<T>& t, int64_t batch, int64_t count) {
  return memory_box(t, batch, count);
}

template <typename Byte>
MemoryBox memory_box(const AttentionArguments& a, const ScoreTensor<Byte>& t, int64_t queries, int64_t keys) {
  const int64_t bytes = size_bytes(t.dtype);
  return core::memory_box(t.data, bytes,
                          {{{a.batch, t.batch_stride * bytes},
                            {a.heads_q, t.head_stride * bytes},
                            {queries, t.q_stride * bytes},
                            {keys, t.kv_stride * bytes}}});
}

}  // namespace detail

// f(FieldName, MemoryBox, Access) for all that the call's arguments point to.
template <typename F>
void call_memory(const AttentionArguments& a, F&& f) {
  const auto read = [&](const FieldName& name, const MemoryBox& box) { f(name, box, Access::read); };
  operands(a, [&](Name operand, const Operand& t, int64_t batch, int64_t rows, int64_t heads, int64_t dim) {
    const bool is_gradient = operand == Name::dq || operand == Name::dk || operand == Name::dv;
    const bool is_result = operand == Name::out || operand == Name::lse || operand == Name::amax;
    const bool is_written = a.operation == Operation::backward ? is_gradient : is_result;
    f(FieldName{name(operand)}, memory_box(t, batch, rows, heads, dim), is_written ? Access::written : Access::read);
  });
  const auto read_table = [&](const char* name, const auto& table, int64_t outer, int64_t inner) {
    read(FieldName{name}, detail::memory_box(a, table, outer, inner));
  };
  length_tables(a, read_table);
  score_tensors(a, read_table);
  score_gradients(a, [&](const char* name, const ScoreGradient& t, int64_t queries, int64_t keys) {
    f(FieldName{name}, detail::memory_box(a, t, queries, keys), Access::written);
  });
  // Runs count in the schedule of a decode call; the map of a mask they only read.
  f(FieldName{"schedule"}, memory_box(a.schedule, a.schedule_bytes),
    a.features.has_any(kMappedMasks) ? Access::read : Access::written);
  read(FieldName{"seed"}, memory_box(a.seed_data, sizeof(int64_t)));
  read(FieldName{"offset"}, memory_box(a.offset_data, sizeof(int64_t)));
  for (int32_t i = 0; i < a.num_arrays; ++i) {
    const UserArray& array = a.arrays[i];
    read(FieldName{"mod_args", nullptr, i}, memory_box(array.data, array.count * size_bytes(array.dtype)));
  }
  read(FieldName{"cancel"}, memory_box(a.cancel, sizeof(int32_t)));
}

template <typename F>
void call_memory(const MergeArguments& a, F&& f) {
  const auto box = [&](const Operand& t, int64_t dim) { return memory_box(t, a.batch, a.seqlen, a.heads, dim); };
  merge_inputs(a, [&](const FieldName& name, const Operand& t, int64_t dim) { f(name, box(t, dim), Access::read); });
  f(FieldName{"out"}, box(a.result.out, a.head_dim), Access::written);
  f(FieldName{"lse"}, box(a.result.lse, 1), Access::written);
  f(FieldName{"cancel"}, memory_box(a.cancel, sizeof(int32_t)), Access::read);
}

template <typename F>
void call_memory(const AppendArguments& a, F&& f) {
  append_operands(a, [&](const char* name, const Operand& t, bool is_written, int64_t batch, int64_t rows,
                         int64_t heads, int64_t dim) {
    f(FieldName{name}, memory_box(t, batch, rows, heads, dim), is_written ? Access::written : Access::read);
  });
  append_tables(a, [&](const char* name, const Table<int32_t>& t, int64_t batch, int64_t count) {
    f(FieldName{name}, detail::memory_box(t, batch, count), Access::read);
  });
  f(FieldName{"cancel"}, memory_box(a.cancel, sizeof(int32_t)), Access::read);
}

template <typename F>
void call_memory(const QuantizeArguments& a, F&& f) {
  quantize_operands(a, [&](const char* name, const Operand& t, bool is_written, int64_t batch, int64_t rows,
                           int64_t heads, int64_t dim) {
    f(FieldName{name}, memory_box(t, batch, rows, heads, dim), is_written ? Access::written : Access::read);
  });
  quantize_tables(a, [&](const char* name, const Table<int32_t>& t, int64_t batch, int64_t count) {
    f(FieldName{name}, detail::memory_box(t, batch, count), Access::read);
  });
  f(FieldName{"cancel"}, memory_box(a.cancel, sizeof(int32_t)), Access::read);
}

template <typename F>
void call_memory(const CopyPagesArguments& a, F&& f) {
  copied_pools(a, [&](const FieldName& name, const CopyPagesArguments::Pool& pool) {
    f(name, memory_box(pool.pages, a.num_pages, pool.rows, pool.heads, pool.head_dim), Access::written);
  });
  f(FieldName{"pairs"}, detail::memory_box(a.pairs, a.num_pairs, 2), Access::read);
  f(FieldName{"cancel"}, memory_box(a.cancel, sizeof(int32_t)), Access::read);
}

}  // namespace tessella::core
