// quantize and dequantize on the CPU: plain loops over threads, a row at a time.
#pragma once

#include <string>

#include "core/arguments.hpp"
#include "core/kernel.hpp"
#include "core/plan.hpp"

namespace tessella::cpu {

core::WorkspaceSize quantize_workspace(const core::Shape& shape, int num_threads);
std::string describe_quantize(const core::Plan& plan);
void run_quantize(const core::Arguments& arguments, const core::Plan& plan, core::Workspace workspace, void* stream);
void run_dequantize(const core::Arguments& arguments, const core::Plan& plan, core::Workspace workspace, void* stream);

}  // namespace tessella::cpu
