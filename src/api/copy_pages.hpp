// copy_pages: the user's structs -> arguments, the bounds of its plans, and the check of its results.
#pragma once

#include "api/normalize.hpp"
#include "core/arguments.hpp"
#include "reference/check.hpp"
#include "tessella/tessella.h"

namespace tessella::api {

tessella_copy_pages_options grown(const tessella_copy_pages_options* options, const char* function);

// Reads no memory of the pools.
core::CopyPagesArguments read(const tessella_copy_pages_args* args, const tessella_copy_pages_options& options,
                              const char* function, void* stream, Memory memory = Memory::written);

core::CopyPagesShape bounds(const core::CopyPagesShape& shape, const tessella_copy_pages_options& options);

// Checks results, also on a GPU, after all its streams are done.
reference::CheckReport check(const core::CopyPagesArguments& arguments, int64_t num_rows, uint64_t seed);

}  // namespace tessella::api
