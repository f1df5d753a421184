// Stands in for src/cuda/device/ptx/dependent.cuh: kernels run one behind the other here, and what a kernel may find
// undone a test says (emulator::set_kernel_before).
#pragma once

#include "emulator.hpp"

namespace tessella::device::ptx {

inline void wait_for_kernel_before() { emulator::wait_for_kernel_before(); }
inline void let_kernel_behind_start() { emulator::let_kernel_behind_start(); }

}  // namespace tessella::device::ptx
