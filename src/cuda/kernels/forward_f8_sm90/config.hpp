// The compiled configuration of a forward_f8_sm90 call, with q, k and v of f8e4m3fn and head dims to 256: a pure
// function of its types, features and head dims, never of a length or the batch.
#pragma once

#include <string>

#include "cuda/compile/program.hpp"
#include "cuda/kernels/forward_sm90/params.cuh"
#include "operations/attention/shape.hpp"
#include "portable/transpose_v.hpp"

namespace tessella::cuda {

portable::ForwardSm90Config forward_f8_sm90_config(const core::AttentionShape& shape);

Program forward_f8_sm90_program(const portable::ForwardSm90Config& config, const std::string& user_source);
Program transpose_v_program(const portable::TransposeVConfig& config);

}  // namespace tessella::cuda
