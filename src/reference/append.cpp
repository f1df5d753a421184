// New rows of a cache, of which the first rotary_dim columns of keys and queries are rotated (RoFormer, arXiv
// 2104.09864): for angle j of the row's position,
//   (x, y) -> (x cos - y sin, y cos + x sin),  where x and y are columns 2j and 2j + 1, or j and j + rotary_dim / 2.

#include "reference/append.hpp"

#include <algorithm>
#include <cstring>

#include "core/plan.hpp"
#include "operations/append/new_rows.hpp"
#include "operations/append/quantized_rows.hpp"
#include "portable/rotary.hpp"
#include "reference/element.hpp"
#include "reference/threads.hpp"

namespace tessella::reference {

using core::AppendArguments;

template <typename Real>
void appended_row(const AppendArguments& a, const core::AppendedNames& names, const core::RowsShape& shape,
                  const AppendArguments::Rows& rows, const portable::NewRow& at, int64_t head, Real* row) {
  load_row(rows.from.row(at.from_batch, at.from_row, head), a.dtype(), shape.head_dim, row);
  if (!names.is_rotated) return;
  for (int64_t j = 0; j < a.rotary_dim / 2; ++j) {
    Real& first = row[portable::first_column(j, a.rotary_interleaved)];
    Real& second = row[portable::second_column(j, a.rotary_dim, a.rotary_interleaved)];
    const auto turned = portable::rotate(first, second, load<Real>(a.cos.row(0, at.position, 0), a.rotary, j),
                                         load<Real>(a.sin.row(0, at.position, 0), a.rotary, j));
    first = turned.first;
    second = turned.second;
  }
}

template void appended_row(const AppendArguments&, const core::AppendedNames&, const core::RowsShape&,
                           const AppendArguments::Rows&, const portable::NewRow&, int64_t, double*);
template void appended_row(const AppendArguments&, const core::AppendedNames&, const core::RowsShape&,
                           const AppendArguments::Rows&, const portable::NewRow&, int64_t, float*);

namespace {

// A row in float64, and in fp32 as it is quantised; whole doubles, so that the next worker's are aligned.
int64_t row_bytes(const core::AppendShape& p) {
  const int64_t head_dim = std::max({p.k_new.head_dim, p.v_new.head_dim, p.q.head_dim});
  return (head_dim + (head_dim + 1) / 2) * static_cast<int64_t>(sizeof(double));
}

}  // namespace

core::WorkspaceSize append_workspace(const core::Shape& shape, int num_threads) {
  return {.state_bytes = 0, .scratch_bytes = num_threads * row_bytes(core::append(shape))};
}

void append_run(const core::Arguments& arguments, const core::Plan& plan, core::Workspace workspace, void*) {
  const AppendArguments& a = core::append(arguments);
  const portable::NewRowTables tables = core::new_row_tables(a);
  const bool is_quantized = core::is_quantized(a.cache.dtype);
  for_each(a.tokens(), plan.num_threads, a.cancel, [&](int64_t token, int worker) {
    const portable::NewRow at = portable::new_row(tables, static_cast<int32_t>(token));
    if (!at.is_new) return;
    auto* row = reinterpret_cast<double*>(static_cast<std::byte*>(workspace.scratch) + worker * row_bytes(a));
    AppendArguments::appended_rows(
        a, [&](const core::AppendedNames& names, const core::RowsShape& shape, const AppendArguments::Rows& rows) {
          for (int64_t head = 0; head < shape.heads; ++head) {
            appended_row(a, names, shape, rows, at, head, row);
            if (names.is_cache && is_quantized) {
              auto* narrow = reinterpret_cast<float*>(row + shape.head_dim);
              std::transform(row, row + shape.head_dim, narrow, [](double x) { return static_cast<float>(x); });
              core::store_quantized(a, rows, at, head, narrow, shape.head_dim);
              continue;
            }
            std::byte* into =
                names.is_cache ? rows.into.row(at.slot, at.row, head) : rows.into.row(at.from_batch, at.from_row, head);
            // Columns that are not rotated keep every bit, even of a signalling NaN.
            std::memmove(into, rows.from.row(at.from_batch, at.from_row, head),
                         static_cast<size_t>(core::bytes_of(a.dtype(), shape.head_dim)));
            if (names.is_rotated) store_row(into, a.dtype(), a.rotary_dim, row);
          }
        });
  });
}

}  // namespace tessella::reference
