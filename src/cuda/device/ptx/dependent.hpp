// Kernels that start before the one in front of them in the stream ends (programmatic dependent launch, Hopper).
#pragma once

namespace tessella::device::ptx {

// Waits until the kernel before has ended and what it wrote is there. Nothing where this one was launched to start
// behind it.
__device__ __forceinline__ void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The kernel behind may start, once every block has come here or ended. It waits for this one's end before it reads.
__device__ __forceinline__ void let_kernel_behind_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace tessella::device::ptx
