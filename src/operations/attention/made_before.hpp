// What was made before a call on a GPU: where its keys are split, or the map of its mask.
#pragma once

#include "operations/attention/arguments.hpp"
#include "operations/reading.hpp"
#include "operations/tensor_reader.hpp"
#include "tessella/tessella.h"

namespace tessella::core {

// Reads it into arguments, whose masks and options are known. Throws Error(invalid_argument).
void read_made_before(const tessella_forward_args& args, const char* function, Memory memory, TensorReader& reader,
                      AttentionArguments& arguments);

}  // namespace tessella::core
