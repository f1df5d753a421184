// What an algorithm's loops move between the GPU's memory and its blocks, counted as if every byte came from memory and
// every sequence of a batch had its full length, for the lengths lie on the GPU.
#pragma once

#include "core/kernel.hpp"
#include "portable/forward_config.hpp"

namespace tessella::cuda {

core::Cost forward_cost(const core::Problem& problem, const portable::ForwardConfig& config);
core::Cost standard_cost(const core::Problem& problem, const portable::ForwardConfig& config);
core::Cost flash_1_cost(const core::Problem& problem, const portable::ForwardConfig& config);

// Memory that the ladder's kernels keep.
double standard_bytes(const core::Problem& problem, const portable::ForwardConfig& config);
double flash_1_bytes(const core::Problem& problem, const portable::ForwardConfig& config);

}  // namespace tessella::cuda
