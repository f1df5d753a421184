// What a call of forward_sm90, with 16-bit types and head dims to 256, compiles to: a pure function of its sizes, types
// and features. Never of batch; of lengths and windows in wide heads, unless the call is batch_invariant.
#pragma once

#include <optional>
#include <string>

#include "core/shape.hpp"
#include "cuda/compile/program.hpp"
#include "portable/forward_sm90.hpp"

namespace tessella::cuda {

portable::ForwardSm90Config forward_sm90_config(const core::AttentionShape& shape);
// The same with pairs of blocks that take two tiles of queries side by side, each loading half of the keys for both:
// where all tiles see as many keys, each head's the same, and are many. For calls whose tiles are even in number.
std::optional<portable::ForwardSm90Config> in_pairs(const portable::ForwardSm90Config& config,
                                                    const core::AttentionShape& shape);

Program forward_sm90_program(const portable::ForwardSm90Config& config, const std::string& user_source);

}  // namespace tessella::cuda
