// Kernels that start before the previous kernel of the stream ends (programmatic dependent launch, Hopper).
#pragma once

namespace tessella::device::ptx {

// Waits until the previous kernel has ended and its writes are visible. Does nothing in a kernel that was not launched
// to overlap the previous one.
__device__ __forceinline__ void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel start once every block has called this or ended. The next kernel waits for this one's end before
// it reads.
__device__ __forceinline__ void let_kernel_behind_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace tessella::device::ptx
