// Makes the normal form of a call out of the C structs: the only code, with score_operands.hpp, that reads raw
// arguments.
#pragma once

#include "core/arguments.hpp"
#include "tessella/tessella.h"

namespace tessella::api {

// Grows structs of the caller's version to ours: members that an older struct lacks get their defaults. Throws
// Error(unsupported) if a newer struct sets a field that this library does not know.
tessella_call grown(const tessella_call* call, const char* function);
tessella_forward_args grown(const tessella_forward_args* args, const char* function);
tessella_attention_options grown(const tessella_attention_options* options, const char* function);

// How the call uses its memory. written: out and lse are written. read: they are only read, for a comparison.
// scheduled: only the schedule is written, and q, k, v, out and lse need no memory. none: nothing is written, and the
// schedule needs no memory either.
enum class Memory { written, read, scheduled, none };
constexpr bool has_operands(Memory memory) { return memory == Memory::written || memory == Memory::read; }

// Shapes, dtypes, strides and devices are checked here, values in core::validate().
core::AttentionArguments normalize(const tessella_forward_args& args, const tessella_attention_options& options,
                                   const char* function, Memory memory);

}  // namespace tessella::api
