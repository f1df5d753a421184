// The compiled configuration of a backward_sm80 call: a pure function of its head dims, types, alignment and features
// and of the GPU's shared memory.
#pragma once

#include <string>

#include "cuda/compile/program.hpp"
#include "cuda/driver/gpus.hpp"
#include "operations/attention/shape.hpp"
#include "portable/backward_params.hpp"

namespace tessella::cuda {

portable::BackwardSm80Config backward_sm80_config(const core::AttentionShape& shape, const DeviceInfo& device);

// One of its kernels: a file of kernels/ and a name in it.
Program backward_program(const char* file, const char* kernel, const portable::BackwardSm80Config& config,
                         const std::string& user_source);

}  // namespace tessella::cuda
