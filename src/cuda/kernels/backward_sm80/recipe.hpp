// FlashAttention-2's backward by the matrix instructions of a warp (kernels/backward_sm80/backward_sm80.cuh).
#pragma once

#include "cuda/launch/recipe.hpp"

namespace tessella::cuda {

Recipe backward_sm80_recipe(const core::Shape& bounds, const DeviceInfo& device);
core::Cost backward_sm80_cost(const core::Arguments& arguments, const DeviceInfo& device);

}  // namespace tessella::cuda
