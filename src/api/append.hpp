// append: the user's structs -> arguments, the bounds of its plans, and the check of its results.
#pragma once

#include "api/normalize.hpp"
#include "core/arguments.hpp"
#include "reference/check.hpp"
#include "tessella/tessella.h"

namespace tessella::api {

tessella_append_options grown(const tessella_append_options* options, const char* function);

// Device tables are read, after what is queued on the stream, only where the options or the environment ask for it.
core::AppendArguments read(const tessella_append_args* args, const tessella_append_options& options,
                           const char* function, void* stream, Memory memory = Memory::written);

// The shape of a call with the bound of the options where larger.
core::AppendShape bounds(const core::AppendShape& shape, const tessella_append_options& options);

// Checks results, also on a GPU, after all its streams are done.
reference::CheckReport check(const core::AppendArguments& arguments, int64_t num_rows, uint64_t seed);

}  // namespace tessella::api
