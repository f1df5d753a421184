// cuda.append: one step.
#pragma once

#include "cuda/launch/recipe.hpp"

namespace tessella::cuda {

Recipe append_recipe(const core::Shape& bounds, const DeviceInfo& device);

}  // namespace tessella::cuda
