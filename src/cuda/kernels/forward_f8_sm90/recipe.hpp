// FlashAttention-3's forward in 8 bits for Hopper (kernels/forward_f8_sm90/forward_f8_sm90.cuh), and the step that
// transposes v before.
#pragma once

#include "cuda/launch/recipe.hpp"

namespace tessella::cuda {

Recipe forward_f8_sm90_recipe(const core::Shape& bounds, const DeviceInfo& device);
core::Cost forward_f8_sm90_cost(const core::Arguments& arguments, const DeviceInfo& device);

}  // namespace tessella::cuda
