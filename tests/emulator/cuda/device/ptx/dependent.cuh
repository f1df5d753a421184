// Stands in for src/cuda/device/ptx/dependent.cuh: kernels run one behind the other here.
#pragma once

namespace tessella::device::ptx {

inline void wait_for_kernel_before() {}
inline void let_kernel_behind_start() {}

}  // namespace tessella::device::ptx
