// The smallest recipe of two steps: attention to at most one key, so that out is zero or the row of v. In calls without
// a key the second step is left out; it may start before the first one ends.
#pragma once

#include "cuda/launch/recipe.hpp"

namespace tessella::tests {

cuda::Recipe toy_recipe(const core::Shape& bounds, const cuda::DeviceInfo& device);

}  // namespace tessella::tests
