// How many heads run at the same time (device/tile/work_tile.cuh).
#pragma once

#include "operations/attention/shape.hpp"

namespace tessella::cuda {

// About how many thread blocks run at a time, and the L2 cache that they use.
struct Concurrency {
  int64_t blocks = 0;
  int64_t l2_bytes = 0;
};

// Query heads of all sequences, in order: sections of `heads`, and one of the rest (none where it is all heads), which
// begins with head `first_of_last`, a multiple of `heads`.
struct Sections {
  int64_t heads = 0;
  int64_t first_of_last = 0;
};

// tiles_q: of a sequence.
Sections sections(const core::AttentionShape& shape, int64_t tiles_q, const Concurrency& at_once);

// Heads of all sequences; rows of packed tensors that belong to none count as a sequence.
int64_t all_heads(const core::AttentionShape& shape);

}  // namespace tessella::cuda
