// Runs a plan: what is the same for every operation.
#pragma once

#include "core/plan.hpp"
#include "tessella/tessella.h"

namespace tessella::api {

// Takes the workspace from the allocator, or from the library's own memory, where the caller brings none.
void run(const core::Plan& plan, const core::Arguments& arguments, const tessella_workspace* workspace,
         const tessella_allocator* allocator, void* stream, const char* function);

}  // namespace tessella::api
