// quantize's and dequantize's configuration and kernels, by shape alone.
#pragma once

#include "cuda/compile/program.hpp"
#include "cuda/kernels/quantize/params.cuh"
#include "operations/quantize/shape.hpp"

namespace tessella::cuda {

portable::QuantizeConfig quantize_config(const core::QuantizeShape& shape);
// kernel: a name of cuda/kernels/quantize/quantize.cuh or dequantize.cuh.
Program quantize_program(const char* kernel, const portable::QuantizeConfig& config);

}  // namespace tessella::cuda
