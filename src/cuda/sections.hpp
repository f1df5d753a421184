// How many heads run side by side (device/schedule.hpp).
#pragma once

#include "core/problem.hpp"

namespace tessella::cuda {

// What runs at a time: thread blocks of the kernel, and the cache behind them.
struct Concurrency {
  int64_t blocks = 0;
  int64_t l2_bytes = 0;
};

// Query heads of all sequences, in order: sections of `heads` up to `last`, and one of the rest.
struct Sections {
  int64_t heads = 0;
  int64_t last = 0;
};

// tiles_q: of a sequence.
Sections sections(const core::Problem& problem, int64_t tiles_q, const Concurrency& at_once);

// Heads of all sequences; rows of packed tensors that belong to none count as a sequence.
int64_t all_heads(const core::Problem& problem);

}  // namespace tessella::cuda
