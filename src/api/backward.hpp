// backward: the user's structs -> arguments, and the check of its results.
#pragma once

#include "api/normalize.hpp"
#include "core/arguments.hpp"
#include "tessella/tessella.h"

namespace tessella::api {

// Like read() of forward; the forward call's out and lse are inputs.
core::AttentionArguments read(const tessella_backward_args* args, const tessella_attention_options& options,
                              const char* function, void* stream, Memory memory = Memory::written);

}  // namespace tessella::api
