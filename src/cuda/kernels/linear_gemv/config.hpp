// linear_gemv's configuration, by shape alone.
#pragma once

#include "cuda/compile/program.hpp"
#include "cuda/kernels/linear_gemv/params.cuh"
#include "operations/linear/shape.hpp"

namespace tessella::cuda {

// A sum has the same bits in all of them.
portable::LinearGemvConfig linear_gemv_config(const core::LinearShape& shape);

Program linear_gemv_program(const portable::LinearGemvConfig& config);

}  // namespace tessella::cuda
