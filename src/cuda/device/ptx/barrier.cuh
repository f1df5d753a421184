// Barriers of Hopper: in shared memory (mbarrier), which count threads and copied bytes, and named ones, which count
// warps.
#pragma once

namespace tessella::device::ptx {

// In a build with TESSELLA_DELAYS (docs/kernels/forward_sm90.md) each warp waits a random time, about a microsecond at
// most, before and after a barrier. Such a build shows that results do not depend on the order of warps. The lanes of a
// warp wait alike.
__device__ __forceinline__ void delay() {
#ifdef TESSELLA_DELAYS
  uint32_t clock;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(clock));
  __nanosleep(((clock ^ threadIdx.x / 32 * 0x9E3779B9u) * 0x85EBCA6Bu) >> 22);
#endif
}

// A phase of the barrier ends when `count` threads have arrived and all bytes that they expect have landed.
__device__ __forceinline__ void init_barrier(uint32_t barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
// Makes barriers visible to the copy engine and to other blocks. Call it before a __syncthreads() or sync_cluster().
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void arrive(uint32_t barrier) {
  delay();
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
  delay();
}
__device__ __forceinline__ void arrive_expecting(uint32_t barrier, uint32_t bytes) {
  delay();
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
  delay();
}
// Waits until the phase of this parity has ended.
__device__ __forceinline__ void wait(uint32_t barrier, uint32_t parity) {
  delay();
  asm volatile(
      "{\n"
      ".reg .pred ended;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n"
      "@!ended bra.uni again;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
  delay();
}

// True in one lane of the warp. All its lanes call it.
__device__ __forceinline__ bool elect() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred elected;\n"
      "elect.sync _|elected, 0xFFFFFFFF;\n"
      "selp.b32 %0, 1, 0, elected;\n"
      "}"
      : "=r"(elected));
  return elected != 0;
}

// Named barriers 1 to 15 of a block; `threads` counts those that wait and those that only arrive, whole warps.
__device__ __forceinline__ void named_wait(int barrier, int threads) {
  delay();
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
  delay();
}
__device__ __forceinline__ void named_arrive(int barrier, int threads) {
  delay();
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
  delay();
}

// Returns when all threads of the cluster's blocks have arrived.
__device__ __forceinline__ void sync_cluster() {
  delay();
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
  delay();
}

// Registers a thread of this warpgroup may use from here on; a multiple of 8. All its warps call it.
template <int Registers>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

}  // namespace tessella::device::ptx
