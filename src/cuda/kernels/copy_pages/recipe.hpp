// cuda.copy_pages: a step for as many pools as a launch's parameters hold.
#pragma once

#include "cuda/launch/recipe.hpp"

namespace tessella::cuda {

Recipe copy_pages_recipe(const core::Shape& bounds, const DeviceInfo& device);

}  // namespace tessella::cuda
