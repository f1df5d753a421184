// cuda.linear_sm80: one step.
#pragma once

#include "cuda/launch/recipe.hpp"

namespace tessella::cuda {

Recipe linear_sm80_recipe(const core::Shape& bounds, const DeviceInfo& device);

}  // namespace tessella::cuda
