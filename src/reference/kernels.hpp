// The reference and the ladder as kernels.
#pragma once

#include "core/kernel.hpp"

namespace tessella::reference {

core::KernelTable reference_kernels();

// The row that says what check() can compare.
const core::Kernel& oracle(core::Operation operation);

}  // namespace tessella::reference
