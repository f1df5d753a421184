// Kernels that are there to be compared: algorithms of the family before FlashAttention-2, whose loops forward_sm80 and
// backward_sm80 have (kernels/ladder/). They run only when named.
#pragma once

#include "cuda/launch/recipe.hpp"

namespace tessella::cuda {

Recipe standard_recipe(const core::Shape& bounds, const DeviceInfo& device);
core::Cost standard_cost(const core::Arguments& arguments, const DeviceInfo& device);

Recipe standard_backward_recipe(const core::Shape& bounds, const DeviceInfo& device);
core::Cost standard_backward_cost(const core::Arguments& arguments, const DeviceInfo& device);

Recipe flash_1_recipe(const core::Shape& bounds, const DeviceInfo& device);
core::Cost flash_1_cost(const core::Arguments& arguments, const DeviceInfo& device);

}  // namespace tessella::cuda
