// append on the CPU: plain loops over threads; what they cost is the memory that they move.
#pragma once

#include <string>

#include "core/arguments.hpp"
#include "core/kernel.hpp"
#include "core/plan.hpp"

namespace tessella::cpu {

core::WorkspaceSize append_workspace(const core::Shape& shape, int num_threads);
std::string describe_append(const core::Plan& plan);
void run_append(const core::Arguments& arguments, const core::Plan& plan, core::Workspace workspace, void* stream);

}  // namespace tessella::cpu
