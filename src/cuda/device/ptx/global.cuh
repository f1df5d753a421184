// Memory that blocks of a running kernel exchange data through: sums, and words that order the blocks (PTX memory
// model, scope gpu).
#pragma once

namespace tessella::device::ptx {

// *to += value, asynchronously. The sum is visible to a block that acquires a word which this block wrote after a
// fence.
__device__ __forceinline__ void add_to_memory(float* to, float value) {
  asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(to), "f"(value) : "memory");
}
__device__ __forceinline__ void store_to_memory(float* to, float value) {
  asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(to), "f"(value) : "memory");
}

// Waits until the word's bits of `mask` are at least `least`, and returns the word. Writes that the word's writer did
// before its fence_memory() are then visible.
__device__ __forceinline__ uint32_t acquire(const uint32_t* word, uint32_t mask, uint32_t least) {
  uint32_t value;
  do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  while ((value & mask) < least);
  return value;
}
// Orders the writes of the block's threads before a barrier, which this thread has passed, before this thread's
// store_to_memory().
__device__ __forceinline__ void fence_memory() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
__device__ __forceinline__ void store_to_memory(uint32_t* to, uint32_t value) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

// Loads 16 or 8 bytes that another block has stored. The load bypasses this multiprocessor's cache.
__device__ __forceinline__ void load_from_memory(float (&x)[4], const float* from) {
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
               : "l"(from)
               : "memory");
}
__device__ __forceinline__ void load_from_memory(float (&x)[2], const float* from) {
  asm volatile("ld.relaxed.gpu.global.v2.f32 {%0,%1}, [%2];" : "=f"(x[0]), "=f"(x[1]) : "l"(from) : "memory");
}
__device__ __forceinline__ void store_to_memory(float* to, const float (&x)[4]) {
  asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
               : "memory");
}
__device__ __forceinline__ void store_to_memory(float* to, const float (&x)[2]) {
  asm volatile("st.relaxed.gpu.global.v2.f32 [%0], {%1,%2};" ::"l"(to), "f"(x[0]), "f"(x[1]) : "memory");
}
// Loads 16 bytes that only this warp reads: they leave this multiprocessor's cache to others. The load stays behind
// wait_for_kernel_before(), as the compiler keeps the order of both.
__device__ __forceinline__ void load_once(uint32_t (&words)[4], const void* from) {
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "l"(from));
}
// Counts an arrival. Returns true for the last of `count` arrivals, which resets the word to zero. Call it between
// fences.
__device__ __forceinline__ bool is_last_arrival(uint32_t* word, uint32_t count) {
  uint32_t before;
  asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(word), "r"(count - 1) : "memory");
  return before == count - 1;
}

}  // namespace tessella::device::ptx
