// cuda.merge: a step for every 32 states.
#pragma once

#include "cuda/launch/recipe.hpp"

namespace tessella::cuda {

Recipe merge_recipe(const core::Shape& bounds, const DeviceInfo& device);

}  // namespace tessella::cuda
