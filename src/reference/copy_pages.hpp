// The oracle of copy_pages.
#pragma once

#include "core/arguments.hpp"
#include "core/kernel.hpp"
#include "operations/copy_pages/arguments.hpp"
#include "reference/check.hpp"

namespace tessella::reference {

void copy_pages_run(const core::Arguments& arguments, const core::Plan& plan, core::Workspace workspace, void* stream);

// Copies are held to every bit.
CheckReport check_copy_pages(const core::CopyPagesArguments& arguments, int64_t num_rows, uint64_t seed);

}  // namespace tessella::reference
