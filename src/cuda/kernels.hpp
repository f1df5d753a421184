// Table of the CUDA backend's kernels.
#pragma once

#include "core/kernel.hpp"

namespace tessella::cuda {

core::KernelTable cuda_kernels();

}  // namespace tessella::cuda
