// FlashAttention-2's forward by the matrix instructions of a warp (kernels/forward_sm80/forward_sm80.cuh).
#pragma once

#include "cuda/launch/recipe.hpp"

namespace tessella::cuda {

Recipe forward_sm80_recipe(const core::Shape& bounds, const DeviceInfo& device);
core::Cost forward_sm80_cost(const core::Arguments& arguments, const DeviceInfo& device);

}  // namespace tessella::cuda
