// copy_pages on the CPU.
#pragma once

#include <string>

#include "core/arguments.hpp"
#include "core/kernel.hpp"
#include "core/plan.hpp"

namespace tessella::cpu {

std::string describe_copy_pages(const core::Plan& plan);
void run_copy_pages(const core::Arguments& arguments, const core::Plan& plan, core::Workspace workspace, void* stream);

}  // namespace tessella::cpu
