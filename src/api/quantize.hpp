// quantize and dequantize: the user's structs -> arguments, the bounds of their plans, and the check of their results.
#pragma once

#include "api/normalize.hpp"
#include "core/arguments.hpp"
#include "reference/check.hpp"
#include "tessella/tessella.h"

namespace tessella::api {

tessella_quantize_options grown(const tessella_quantize_options* options, const char* function);
tessella_dequantize_options grown(const tessella_dequantize_options* options, const char* function);

// Device tables are read, after what is queued on the stream, only where the options or the environment ask for it.
core::QuantizeArguments read(const tessella_quantize_args* args, const tessella_quantize_options& options,
                             const char* function, void* stream, Memory memory = Memory::written);
core::QuantizeArguments read(const tessella_dequantize_args* args, const tessella_dequantize_options& options,
                             const char* function, void* stream, Memory memory = Memory::written);

// The shape of a call with the bound of the options where larger.
core::QuantizeShape bounds(const core::QuantizeShape& shape, const tessella_quantize_options& options);
core::QuantizeShape bounds(const core::QuantizeShape& shape, const tessella_dequantize_options& options);

// Checks results, also on a GPU, after all its streams are done.
reference::CheckReport check(const core::QuantizeArguments& arguments, int64_t num_rows, uint64_t seed);

}  // namespace tessella::api
