// The compiled configuration of a forward_sm80 call: a pure function of its sizes, types, alignment and features and of
// the GPU's shared memory. It never depends on batch, lengths or windows.
#pragma once

#include <optional>
#include <string>

#include "cuda/compile/program.hpp"
#include "cuda/driver/gpus.hpp"
#include "cuda/kernels/forward_sm80/params.cuh"
#include "cuda/launch/forward_tiles.hpp"
#include "operations/attention/shape.hpp"

namespace tessella::cuda {

portable::ForwardSm80Config forward_sm80_config(const core::AttentionShape& shape, const DeviceInfo& device);
// The same with more keys a tile, for a score modification that needs few registers, which only compiling it tells.
// Nothing if the call has no score modification, or other features beside it.
std::optional<portable::ForwardSm80Config> for_small_source(const portable::ForwardSm80Config& config, int arch);

Program forward_sm80_program(const portable::ForwardSm80Config& config, const std::string& user_source);

// How many accumulators (portable::accumulators()) a thread may have in addition to its other registers.
int accumulator_limit(const portable::ForwardSm80Config& config, int arch);

// A GPU of this arch as far as the config depends on it.
DeviceInfo typical_device(int arch);

}  // namespace tessella::cuda
