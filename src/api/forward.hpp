// The front door of forward: normalise -> validate -> plan -> run.
#pragma once

#include <memory>
#include <span>

#include "api/normalize.hpp"
#include "core/kernel.hpp"
#include "core/plan.hpp"
#include "reference/check.hpp"
#include "tessella/tessella.h"

namespace tessella::api {

// Tables of every backend, in the order of choice.
std::span<const core::KernelTable> kernel_tables();

// Device tables are read, after what is queued on the stream, only where the options or the environment ask for it.
core::Problem read_problem(const tessella_forward_args* args, const tessella_attention_options& options,
                           const char* function, void* stream, Memory memory = Memory::written);

// The name the options or the environment force, or "".
std::string_view forced_kernel(const tessella_attention_options& options);

// For the problem's sizes, or the bounds of the options where larger.
core::Plan plan_forward(const core::Problem& problem, const tessella_attention_options& options);

// The same from a small cache, where lengths are rounded up so that a growing sequence finds its plan again.
std::shared_ptr<const core::Plan> cached_plan(const core::Problem& problem, const tessella_attention_options& options);

// Throws Error(invalid_argument) if the plan was made for another kind of call.
void check_fits(const core::Plan& plan, const core::Problem& problem);

void run(const core::Plan& plan, const core::Problem& problem, const tessella_workspace* workspace,
         const tessella_allocator* allocator, void* stream, const char* function);

// Of results on a GPU too, once all its streams are done.
reference::CheckReport check_forward(const core::Problem& problem, int64_t num_rows, uint64_t seed);

}  // namespace tessella::api
