// linear of many rows in fp32 by the BLAS of the user's machine, where there is one.
#pragma once

#include "core/kernel.hpp"

namespace tessella::cpu {

extern const core::Kernel kLinearBlas;

}  // namespace tessella::cpu
