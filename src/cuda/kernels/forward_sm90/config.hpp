// The compiled configuration of a forward_sm90 call, with 16-bit types and head dims to 256: a pure function of its
// sizes, types and features. It never depends on the batch. In wide heads it depends on lengths and windows, unless the
// call is batch_invariant.
#pragma once

#include <string>

#include "cuda/compile/program.hpp"
#include "cuda/kernels/forward_sm90/params.cuh"
#include "operations/attention/shape.hpp"

namespace tessella::cuda {

portable::ForwardSm90Config forward_sm90_config(const core::AttentionShape& shape);

Program forward_sm90_program(const portable::ForwardSm90Config& config, const std::string& user_source);

}  // namespace tessella::cuda
