// Blocks of a cluster that send each other results (sm_90).
#pragma once

namespace tessella::device::ptx {

#if __CUDA_ARCH__ >= 900
inline constexpr bool kHasClusters = true;

// Says that other blocks may write to this block's memory. It has no fence, because a fence would wait for all memory
// operations of the warp.
__device__ __forceinline__ void arrive_at_cluster() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void wait_for_cluster() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The same address in another block of the cluster.
__device__ __forceinline__ uint32_t address_in(uint32_t block, uint32_t address) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
  return there;
}
// Stores to another block's memory; its barrier there counts the bytes when they have landed.
__device__ __forceinline__ void send(uint32_t to, const float (&x)[4], uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1,%2,%3,%4}, [%5];" ::"r"(to),
               "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void send(uint32_t to, const float (&x)[2], uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1,%2}, [%3];" ::"r"(to), "f"(x[0]),
               "f"(x[1]), "r"(barrier)
               : "memory");
}
// Loads four floats from another block's memory.
__device__ __forceinline__ void load_floats_in(float (&x)[4], uint32_t there) {
  asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
               : "r"(there)
               : "memory");
}
__device__ __forceinline__ float load_float_in(uint32_t there) {
  float x;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(there) : "memory");
  return x;
}
// Like wait() of barrier.cuh, for data that other blocks have sent.
__device__ __forceinline__ void wait_for_sent(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred ended;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 ended, [%0], %1;\n"
      "@!ended bra.uni again;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
#else
inline constexpr bool kHasClusters = false;

// Before Hopper clusters are of one block.
__device__ __forceinline__ void arrive_at_cluster() {}
__device__ __forceinline__ void wait_for_cluster() {}
__device__ __forceinline__ uint32_t address_in(uint32_t, uint32_t address) { return address; }
template <int N>
__device__ __forceinline__ void send(uint32_t, const float (&)[N], uint32_t) {}
__device__ __forceinline__ void load_floats_in(float (&)[4], uint32_t) {}
__device__ __forceinline__ float load_float_in(uint32_t) { return 0; }
__device__ __forceinline__ void wait_for_sent(uint32_t, uint32_t) {}
#endif

}  // namespace tessella::device::ptx
