// The reference and the ladder as kernels.
#pragma once

#include "core/kernel.hpp"

namespace tessella::reference {

core::KernelTable reference_kernels();

}  // namespace tessella::reference
