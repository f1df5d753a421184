// Preconditions on values: ranges, lengths, tables, memory. Shapes were checked when the Problem was made.
#pragma once

#include "core/problem.hpp"

namespace tessella::core {

// Tables on a GPU are not read. Throws Error(invalid_argument or unsupported) naming `function`, the argument, what it
// is and what was expected.
void validate(const Problem& problem, const char* function);

// The part that also holds for the bounds of a plan: sizes whose arithmetic fits.
void validate_sizes(const Problem& problem, const char* function);

}  // namespace tessella::core
