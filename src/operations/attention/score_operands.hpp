// The tensors of a call that change or hide scores: bias, ALiBi slopes, sinks and masks.
#pragma once

#include <cstdint>

#include "operations/attention/arguments.hpp"
#include "operations/tensor_reader.hpp"
#include "tessella/tessella.h"

namespace tessella::core {

inline constexpr int64_t kUnbounded = int64_t{1} << 40;  // beyond any length, so that positions cannot overflow

// Reads them into arguments, whose axes, tables, device and packed lengths are known. Throws Error(invalid_argument) or
// Error(unsupported).
void read_score_operands(const tessella_forward_args& args, const tessella_attention_options& options,
                         const char* function, TensorReader& reader, AttentionArguments& arguments);

}  // namespace tessella::core
