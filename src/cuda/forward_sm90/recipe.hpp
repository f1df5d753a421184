// Row of the kernel table: FlashAttention-3's forward for Hopper (device/forward_sm90.hpp).
#pragma once

#include "core/kernel.hpp"

namespace tessella::cuda {

core::Kernel forward_sm90();

}  // namespace tessella::cuda
