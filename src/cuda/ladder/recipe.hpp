// Rows of the kernel table that are there to be compared: algorithms of the family before FlashAttention-2, whose loops
// cuda.forward_sm80 has. They run only when named.
#pragma once

#include "core/kernel.hpp"

namespace tessella::cuda {

core::Kernel ladder_standard();
core::Kernel ladder_flash_1();

}  // namespace tessella::cuda
