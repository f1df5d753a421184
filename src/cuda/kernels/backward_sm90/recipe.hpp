// FlashAttention-3's backward with Hopper's copy engine and warpgroup matrix instructions
// (kernels/backward_sm90/backward_sm90.cuh).
#pragma once

#include <string>

#include "core/arguments.hpp"
#include "core/kernel.hpp"
#include "cuda/launch/recipe.hpp"

namespace tessella::cuda {

std::string backward_sm90_unavailable(const DeviceInfo& device);
Recipe backward_sm90_recipe(const core::Shape& bounds, const DeviceInfo& device);
core::Cost backward_sm90_cost(const core::Arguments& arguments, const DeviceInfo& device);

}  // namespace tessella::cuda
