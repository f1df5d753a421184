// merge: the user's structs -> arguments, the bounds of its plans, and the check of its results.
#pragma once

#include "api/normalize.hpp"
#include "core/arguments.hpp"
#include "reference/check.hpp"
#include "tessella/tessella.h"

namespace tessella::api {

tessella_merge_options grown(const tessella_merge_options* options, const char* function);

// Reads no memory of the tensors.
core::MergeArguments read(const tessella_merge_args* args, const tessella_merge_options& options, const char* function,
                          void* stream, Memory memory = Memory::written);

// The shape of a call with the bound of the options where larger.
core::MergeShape bounds(const core::MergeShape& shape, const tessella_merge_options& options);

// Checks results, also on a GPU, after all its streams are done.
reference::CheckReport check(const core::MergeArguments& arguments, int64_t num_rows, uint64_t seed);

}  // namespace tessella::api
