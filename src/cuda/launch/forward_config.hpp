// What a call of forward compiles to: a pure function of its sizes, types, alignment and features and of the GPU's
// shared memory. Never of batch; of lengths and windows in wide heads on Hopper, unless the call is batch_invariant.
#pragma once

#include <optional>
#include <string>

#include "core/problem.hpp"
#include "cuda/compile/program.hpp"
#include "cuda/driver/gpus.hpp"
#include "portable/forward_config.hpp"

namespace tessella::cuda {

portable::ForwardConfig forward_config(const core::Problem& problem, const DeviceInfo& device);
// The same with more keys a tile, for a text that leaves the registers, which only compiling it tells. None where the
// kernel has no text or more beside it.
std::optional<portable::ForwardConfig> for_small_text(const portable::ForwardConfig& config, int arch);
// Of forward_sm90, for 16-bit types and head dims to 256.
portable::ForwardConfig forward_sm90_config(const core::Problem& problem);
// The same with pairs of blocks that take two tiles of queries side by side, each loading half of the keys for both:
// where all tiles see as many keys, each head's the same, and are many. For calls whose tiles are even in number.
std::optional<portable::ForwardConfig> in_pairs(const portable::ForwardConfig& config, const core::Problem& problem);
// Of the ladder's kernels: smaller tiles, as clarity comes before speed there.
portable::ForwardConfig ladder_config(const core::Problem& problem, const DeviceInfo& device);

// Registers a thread spends on the output and on the scores of a tile, and how many it may beside all else it holds.
int accumulators(const portable::ForwardConfig& config);
int accumulator_limit(const portable::ForwardConfig& config, int arch);

// Blocks that share v's columns.
inline int32_t slices_v(const core::Problem& problem, const portable::ForwardConfig& config) {
  return static_cast<int32_t>((problem.head_dim_v + config.head_dim_v - 1) / config.head_dim_v);
}

// A GPU of this arch as far as configs look at it.
DeviceInfo typical_device(int arch);

// The kernel itself, and the one that classifies tiles before it where masks are no interval.
Program forward_program(const portable::ForwardConfig& config, const std::string& user_text);
Program forward_sm90_program(const portable::ForwardConfig& config, const std::string& user_text);
Program classify_program(const portable::ForwardConfig& config, const std::string& user_text);
// One of the ladder's kernels, in device/ladder/.
Program ladder_program(const char* file, const char* kernel, const portable::ForwardConfig& config,
                       const std::string& user_text);

}  // namespace tessella::cuda
