#include "cpu/append.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "cpu/parallel.hpp"
#include "cpu/rotate.hpp"
#include "operations/append/arguments.hpp"
#include "operations/append/new_rows.hpp"
#include "operations/append/quantized_rows.hpp"

namespace tessella::cpu {
namespace {

using core::AppendArguments;

// The rows of one token: its keys, values and queries. row: for one that is quantised.
template <typename T>
void append_token(const AppendArguments& a, const portable::NewRow& at, RealOf<T>* cos, RealOf<T>* sin, float* row) {
  const bool is_quantized = core::is_quantized(a.cache.dtype);
  load_angles(a.rotary, a.cos.row(0, at.position, 0), a.sin.row(0, at.position, 0), a.rotary_dim / 2, cos, sin);
  AppendArguments::appended_rows(a, [&](const core::AppendedNames& names, const core::RowsShape& shape,
                                        const AppendArguments::Rows& rows) {
    const int64_t rotary_dim = names.is_rotated ? a.rotary_dim : 0;
    for (int64_t head = 0; head < shape.heads; ++head) {
      const auto* from = reinterpret_cast<const T*>(rows.from.row(at.from_batch, at.from_row, head));
      if constexpr (!std::is_same_v<T, double>) {
        if (names.is_cache && is_quantized) {
          rotate_row(from, row, rotary_dim, a.rotary_interleaved, cos, sin);
          std::transform(from + rotary_dim, from + shape.head_dim, row + rotary_dim, [](T x) { return load(x); });
          core::store_quantized(a, rows, at, head, row, shape.head_dim);
          continue;
        }
      }
      auto* into = reinterpret_cast<T*>(names.is_cache ? rows.into.row(at.slot, at.row, head)
                                                       : rows.into.row(at.from_batch, at.from_row, head));
      rotate_row(from, into, rotary_dim, a.rotary_interleaved, cos, sin);
      if (into == from) continue;
      std::memcpy(into + rotary_dim, from + rotary_dim, static_cast<size_t>(shape.head_dim - rotary_dim) * sizeof(T));
    }
  });
}

int64_t token_bytes(const core::AppendShape& p) {
  int64_t elements = 0;
  for (const core::RowsShape& rows : {p.k_new, p.v_new, p.q}) elements += rows.heads * rows.head_dim;
  return elements * core::size_bytes(p.dtype());
}

// A piece of work of some 64 KB, so that handing it out costs nothing beside it.
int64_t task_tokens(const core::AppendShape& p) {
  return std::clamp<int64_t>((int64_t{64} << 10) / token_bytes(p), 1, 4096);
}

// Bytes of scratch for each thread: cosines and sines of a token, and a row in fp32 if caches are quantized.
int64_t thread_bytes(const core::AppendShape& p) {
  const int64_t row = core::is_quantized(p.cache.dtype) ? std::max(p.k_new.head_dim, p.v_new.head_dim) : 0;
  const int64_t bytes = p.rotary_dim * static_cast<int64_t>(sizeof(double)) + row * static_cast<int64_t>(sizeof(float));
  return (bytes + 63) / 64 * 64;
}

}  // namespace

core::WorkspaceSize append_workspace(const core::Shape& shape, int num_threads) {
  return {.state_bytes = 0, .scratch_bytes = num_threads * thread_bytes(core::append(shape))};
}

std::string describe_append(const core::Plan& plan) { return "a row at a time, " + threads_string(plan.num_threads); }

void run_append(const core::Arguments& arguments, const core::Plan& plan, core::Workspace workspace, void*) {
  const AppendArguments& a = core::append(arguments);
  const portable::NewRowTables tables = core::new_row_tables(a);
  const int64_t tokens = a.tokens(), step = task_tokens(a);
  auto* base = static_cast<std::byte*>(workspace.scratch);
  with_element(a.dtype(), [&]<typename T>(const T*) {
    parallel_for((tokens + step - 1) / step, plan.num_threads, a.cancel, [&](int64_t task, int worker) {
      auto* cos = reinterpret_cast<RealOf<T>*>(base + worker * thread_bytes(a));
      auto* row = reinterpret_cast<float*>(cos + a.rotary_dim);
      for (int64_t token = task * step; token < std::min(tokens, (task + 1) * step); ++token) {
        const portable::NewRow at = portable::new_row(tables, static_cast<int32_t>(token));
        if (at.is_new) append_token<T>(a, at, cos, cos + a.rotary_dim / 2, row);
      }
    });
  });
}

}  // namespace tessella::cpu
