// Running a plan of any operation.
#pragma once

#include "core/choose.hpp"
#include "core/plan.hpp"
#include "tessella/tessella.h"

namespace tessella::api {

// The kernel that the options force, or the environment where it names one of this operation or none at all.
core::ForcedKernel forced_kernel(const char* kernel, core::Operation operation);

// workspace: null: from the allocator, or the library's own. Throws Error(invalid_argument) naming `function` for one
// that is too small, not aligned, overlaps a tensor of the call or is in use by another run; Error(cancelled).
void run(const core::Plan& plan, const core::Arguments& arguments, const tessella_workspace* workspace,
         const tessella_allocator* allocator, void* stream, const char* function);

// Bytes of what is made before that a run of the plan with these arguments reads: a schedule, or the map of a mask; 0:
// nothing is.
int64_t made_bytes(const core::Plan& plan, const core::Arguments& arguments);

// Queues the making of it. Throws Error(invalid_argument) naming `function` for memory that is too small;
// Error(cancelled).
void make_before(const core::Plan& plan, const core::Arguments& arguments, void* stream, const char* function);

}  // namespace tessella::api
