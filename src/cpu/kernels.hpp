// The table of CPU kernels, best first.
#pragma once

#include "core/kernel.hpp"

namespace tessella::cpu {

core::KernelTable cpu_kernels();

}  // namespace tessella::cpu
