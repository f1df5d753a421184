// What the recipes of Hopper's forward kernels have in common: what the copy engine reads, and the step of blocks that
// stay on their multiprocessors.
#pragma once

#include <functional>
#include <string>

#include "cuda/kernels/forward_sm90/params.cuh"
#include "cuda/launch/forward_arguments.hpp"
#include "cuda/launch/recipe.hpp"
#include "operations/attention/arguments.hpp"

namespace tessella::cuda {

// As compiled.
inline int32_t hopper_head_dim(int64_t head_dim) { return compiled_head_dim(head_dim, {64, 96, 128, 192, 256}); }

// Why the copy engine cannot read the call's q, k and v, or "".
std::string unreadable_by_copy_engine(const core::AttentionShape& shape);

// The parameters, without tensor maps. counter: zero; scratch: of map.seen_bytes() + map.bytes().
portable::ForwardSm90Params forward_sm90_params(const core::AttentionArguments& arguments,
                                                const portable::ForwardSm90Config& config, const TileMap& map,
                                                void* counter, void* scratch, const Concurrency& at_once);

// Adds the passes over element masks to a recipe.
void add_hopper_mask_passes(Recipe& recipe, const core::AttentionShape& bounds,
                            const portable::ForwardSm90Config& config, const std::string& user_source);

// The kernel's parameters, of the call's tile map.
using ForwardSm90ParamsOf =
    std::function<portable::ForwardSm90Params(const core::AttentionArguments& arguments, const TileMap& map,
                                              const core::Workspace& workspace, const Concurrency& at_once)>;

// One block on each multiprocessor.
Step hopper_forward_step(const Program& program, const portable::ForwardSm90Config& config, ForwardSm90ParamsOf params);

}  // namespace tessella::cuda
