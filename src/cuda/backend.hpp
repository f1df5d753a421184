// The CUDA backend as the API layer knows it.
#pragma once

#include "core/backend.hpp"

namespace tessella::cuda {

const core::Backend& backend();

}  // namespace tessella::cuda
