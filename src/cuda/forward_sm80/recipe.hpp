// Row of the kernel table: FlashAttention-2's forward by the matrix instructions of a warp (device/forward_sm80.hpp).
#pragma once

#include "core/kernel.hpp"

namespace tessella::cuda {

core::Kernel forward_sm80();

}  // namespace tessella::cuda
