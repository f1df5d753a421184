// The call that another forward kernel computes for cuda.forward_widened, and where its copies lie in scratch.
#pragma once

#include "core/kernel.hpp"
#include "operations/attention/arguments.hpp"

namespace tessella::cuda {

// What the steps around the other kernel do.
struct Around {
  bool widens_q = false, widens_kv = false;  // q, k and v, or k and v alone, are copied in 16 bits
  bool narrows = false;                      // the other kernel's result is f32 in scratch, from which out is written
};
// reads_float8: the other kernel takes q, k and v of fp8 as they are, with their factors.
Around around(const core::AttentionShape& shape, bool reads_float8);

// The other kernel's shape for a call, or for a plan of calls.
core::AttentionShape inner_shape(core::AttentionShape shape, const Around& around);

// Bytes from the beginning of scratch, for a plan's shape; absent copies have none.
struct Copies {
  Around around;
  int64_t q = 0, k = 0, v = 0, out = 0, scratch = 0;  // scratch: the other kernel's
};
Copies copies(const core::AttentionShape& bounds, const Around& around);

// The other kernel's arguments.
core::AttentionArguments inner_call(const core::AttentionArguments& arguments, const Copies& copies, void* scratch);

}  // namespace tessella::cuda
