// What a call of forward_sm90, with 16-bit types and head dims to 256, compiles to: a pure function of its sizes, types
// and features. Never of batch; of lengths and windows in wide heads, unless the call is batch_invariant.
#pragma once

#include <string>

#include "core/shape.hpp"
#include "cuda/compile/program.hpp"
#include "portable/forward_sm90.hpp"

namespace tessella::cuda {

portable::ForwardSm90Config forward_sm90_config(const core::AttentionShape& shape);

Program forward_sm90_program(const portable::ForwardSm90Config& config, const std::string& user_source);

}  // namespace tessella::cuda
