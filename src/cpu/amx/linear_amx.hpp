// linear on AMX tiles: bf16 inputs, fp32 accumulation.
#pragma once

#include "core/kernel.hpp"

namespace tessella::cpu {

extern const core::Kernel kLinearAmx;

}  // namespace tessella::cpu
