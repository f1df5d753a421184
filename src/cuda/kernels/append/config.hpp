// The compiled configuration of append: a pure function of dtypes, alignments and head dims.
#pragma once

#include "cuda/compile/program.hpp"
#include "cuda/kernels/append/params.cuh"
#include "operations/append/shape.hpp"

namespace tessella::cuda {

portable::AppendConfig append_config(const core::AppendShape& shape);

Program append_program(const portable::AppendConfig& config);

}  // namespace tessella::cuda
