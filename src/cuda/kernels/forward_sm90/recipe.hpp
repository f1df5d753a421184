// FlashAttention-3's forward for Hopper (kernels/forward_sm90/forward_sm90.cuh).
#pragma once

#include "cuda/launch/recipe.hpp"

namespace tessella::cuda {

Recipe forward_sm90_recipe(const core::Shape& bounds, const DeviceInfo& device);
core::Cost forward_sm90_cost(const core::Arguments& arguments, const DeviceInfo& device);

}  // namespace tessella::cuda
