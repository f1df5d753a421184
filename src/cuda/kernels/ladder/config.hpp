// The compiled configuration of a call of the ladder's kernels: that of forward_sm80 with smaller tiles, because
// clarity comes before speed there.
#pragma once

#include <string>

#include "cuda/compile/program.hpp"
#include "cuda/driver/gpus.hpp"
#include "cuda/kernels/ladder/params.cuh"
#include "operations/attention/shape.hpp"

namespace tessella::cuda {

portable::LadderConfig ladder_config(const core::AttentionShape& shape, const DeviceInfo& device);

// One of the kernels in kernels/ladder/.
Program ladder_program(const char* file, const char* kernel, const portable::LadderConfig& config,
                       const std::string& user_source);

}  // namespace tessella::cuda
