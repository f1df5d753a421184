// Barriers to the compiler: it may not move a load, a store or a value past them, or must forget what it knows.
#pragma once

namespace tessella::device::ptx {

// The compiler moves no load or store over this point.
__device__ __forceinline__ void keep_loads_in_place() { asm volatile("" ::: "memory"); }

// The compiler computes the value before what follows, and reads it after what comes before.
__device__ __forceinline__ void keep_in_place(float& x) { asm volatile("" : "+f"(x)::"memory"); }
template <int Blocks>
__device__ __forceinline__ void keep_in_place(float (&d)[Blocks][4]) {
#pragma unroll
  for (int j = 0; j < Blocks; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) keep_in_place(d[j][i]);
  }
}

// The compiler forgets what it knows about the value.
__device__ __forceinline__ void forget(int32_t& x) { asm volatile("" : "+r"(x)); }
__device__ __forceinline__ void forget(uint32_t& x) { asm volatile("" : "+r"(x)); }
__device__ __forceinline__ void forget(const char*& x) { asm volatile("" : "+l"(x)); }
// threadIdx.x % 32 from a special register. The assembler cannot derive it from threadIdx.x, so no earlier result stays
// in a register.
__device__ __forceinline__ int lane_anew() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

}  // namespace tessella::device::ptx
