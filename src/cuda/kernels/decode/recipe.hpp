// Flash-Decoding in one launch (kernels/decode/decode.cuh), the schedule that it may follow, and FlashDecoding++'s
// unified maximum, which runs when it is named.
#pragma once

#include "cuda/launch/recipe.hpp"

namespace tessella::cuda {

Recipe decode_recipe(const core::Shape& bounds, const DeviceInfo& device);
Recipe decode_unified_max_recipe(const core::Shape& bounds, const DeviceInfo& device);
core::Cost decode_cost(const core::Arguments& arguments, const DeviceInfo& device);

}  // namespace tessella::cuda
