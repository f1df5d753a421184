// forward: the user's structs -> arguments, and the check of its results.
#pragma once

#include "api/normalize.hpp"
#include "reference/check.hpp"
#include "tessella/tessella.h"

namespace tessella::api {

// Device tables are read, after what is queued on the stream, only where the options or the environment ask for it.
core::AttentionArguments read(const tessella_forward_args* args, const tessella_attention_options& options,
                              const char* function, void* stream, Memory memory = Memory::written);

// The shape of a call with the bounds of the options where larger.
core::AttentionShape bounds(const core::AttentionShape& shape, const tessella_attention_options& options);

// Checks results, also on a GPU, after all its streams are done.
reference::CheckReport check(const core::AttentionArguments& arguments, int64_t num_rows, uint64_t seed);

}  // namespace tessella::api
