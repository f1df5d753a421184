// The call that another forward kernel computes for cuda.forward_widened, and where its copies lie in scratch.
#pragma once

#include "core/arguments.hpp"
#include "core/kernel.hpp"

namespace tessella::cuda {

// q, k and v, or k and v alone, are copied in 16 bits.
bool widens_q(const core::AttentionShape& shape);
bool widens_kv(const core::AttentionShape& shape);
// The other kernel's result is in f32 in scratch, and a step behind it writes out.
bool narrows(const core::AttentionShape& shape);

// The other kernel's shape for a call, or for a plan of calls.
core::AttentionShape inner_shape(core::AttentionShape shape);

// Bytes from the beginning of scratch, for a plan's shape; absent copies have none.
struct Copies {
  int64_t q = 0, k = 0, v = 0, out = 0, scratch = 0;  // scratch: the other kernel's
};
Copies copies(const core::AttentionShape& bounds);

// The other kernel's arguments.
core::AttentionArguments inner_call(const core::AttentionArguments& arguments, const Copies& copies, void* scratch);

}  // namespace tessella::cuda
