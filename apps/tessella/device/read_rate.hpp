// How fast the same bytes are read where nothing is computed from them: the ceiling of a call that reads each once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/memory.hpp"

namespace tessella::cli {

// Seconds to read `bytes` at the begin of one of num_copies stretches of memory, `stride` bytes apart, in turn: on a
// GPU by a kernel of plain 16-byte loads, on the CPU by a loop over words in so many threads.
double seconds_to_read(const Placement& placement, const Memory& memory, size_t bytes, size_t stride,
                       int64_t num_copies, int num_threads, double budget);

}  // namespace tessella::cli
