// linear_sm80's configuration, by shape and GPU alone.
#pragma once

#include "cuda/compile/program.hpp"
#include "cuda/driver/gpus.hpp"
#include "cuda/kernels/linear_sm80/params.cuh"
#include "operations/linear/shape.hpp"

namespace tessella::cuda {

// A sum has the same bits in all of them.
portable::LinearSm80Config linear_sm80_config(const core::LinearShape& shape, const DeviceInfo& device);

Program linear_sm80_program(const portable::LinearSm80Config& config);

}  // namespace tessella::cuda
