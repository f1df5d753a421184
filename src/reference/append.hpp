// The oracle of append: one row of the cache, or of q_out, in float64 for the reference and in fp32 for the plain
// computation.
#pragma once

#include <cstdint>

#include "core/arguments.hpp"
#include "core/kernel.hpp"
#include "operations/append/arguments.hpp"
#include "portable/new_rows.hpp"
#include "reference/check.hpp"

namespace tessella::reference {

// row[0, head_dim) of one head of a new row.
template <typename Real>
void appended_row(const core::AppendArguments& arguments, const core::AppendedNames& names,
                  const core::RowsShape& shape, const core::AppendArguments::Rows& rows, const portable::NewRow& at,
                  int64_t head, Real* row);

core::WorkspaceSize append_workspace(const core::Shape& shape, int num_threads);
void append_run(const core::Arguments& arguments, const core::Plan& plan, core::Workspace workspace, void* stream);

// Like check_forward(), of the rows that an append wrote.
CheckReport check_append(const core::AppendArguments& arguments, int64_t num_rows, uint64_t seed);

}  // namespace tessella::reference
