// cuda.forward_widened: copies of q, k and v of 8 bits, another forward kernel's steps, and out and amax from its
// result.
#pragma once

#include "cuda/launch/recipe.hpp"

namespace tessella::cuda {

Recipe forward_widened_recipe(const core::Shape& bounds, const DeviceInfo& device);

}  // namespace tessella::cuda
