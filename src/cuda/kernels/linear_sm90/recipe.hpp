// cuda.linear_sm90: one step. Its rungs of the ladder are the same kernel in another configuration, which run when they
// are named.
#pragma once

#include "cuda/launch/recipe.hpp"

namespace tessella::cuda {

Recipe linear_sm90_recipe(const core::Shape& bounds, const DeviceInfo& device);

Recipe linear_one_stage_recipe(const core::Shape& bounds, const DeviceInfo& device);
Recipe linear_two_stages_recipe(const core::Shape& bounds, const DeviceInfo& device);
Recipe linear_padded_recipe(const core::Shape& bounds, const DeviceInfo& device);

}  // namespace tessella::cuda
