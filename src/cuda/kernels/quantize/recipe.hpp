// The steps of quantize and dequantize on a GPU.
#pragma once

#include "cuda/launch/recipe.hpp"

namespace tessella::cuda {

Recipe quantize_recipe(const core::Shape& shape, const DeviceInfo& device);
Recipe dequantize_recipe(const core::Shape& shape, const DeviceInfo& device);

}  // namespace tessella::cuda
