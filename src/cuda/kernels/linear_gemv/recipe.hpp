// cuda.linear_gemv: one step.
#pragma once

#include "cuda/launch/recipe.hpp"

namespace tessella::cuda {

Recipe linear_gemv_recipe(const core::Shape& bounds, const DeviceInfo& device);

}  // namespace tessella::cuda
