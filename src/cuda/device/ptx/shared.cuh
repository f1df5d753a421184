// Shared memory: addresses, matrix loads (ldmatrix) and asynchronous copies into it (cp.async), sm_80 and later.
#pragma once

namespace tessella::device::ptx {

// The block's dynamic shared memory.
__device__ __forceinline__ char* dynamic_shared() {
  extern __shared__ __align__(1024) char shared[];
  return shared;
}

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Four 8 x 8 matrices of 16-bit elements. Lanes 8i .. 8i+7 give the addresses of matrix i's rows; lane l receives
// elements (l / 4, 2 (l % 4)) and the next of each. For 32-bit elements: one element (l / 4, l % 4) of 8 x 4.
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
// The same, each matrix transposed.
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// Two such matrices, of which lanes 0 to 15 give the addresses.
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[2], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(address)
               : "memory");
}

// Transposes an 8 x 8 matrix of 16-bit elements, of which each lane holds two as load_matrices() loads them.
__device__ __forceinline__ uint32_t transpose(uint32_t pair) {
  uint32_t transposed;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
  return transposed;
}

// Stores what load_matrices() loads, sm_90.
__device__ __forceinline__ void store_matrices(uint32_t address, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3])
               : "memory");
}

// The same, each matrix transposed.
__device__ __forceinline__ void store_matrices_transposed(uint32_t address, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

__device__ __forceinline__ uint32_t load_word(uint32_t address) {
  uint32_t word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  return word;
}

__device__ __forceinline__ uint32_t load_byte(uint32_t address) {
  uint32_t byte;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(byte) : "r"(address) : "memory");
  return byte;
}

__device__ __forceinline__ uint4 load_chunk(uint32_t address) {
  uint4 chunk;
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(chunk.x), "=r"(chunk.y), "=r"(chunk.z), "=r"(chunk.w)
               : "r"(address)
               : "memory");
  return chunk;
}
__device__ __forceinline__ void store_chunk(uint32_t address, const uint32_t (&words)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(words[0]), "r"(words[1]), "r"(words[2]),
               "r"(words[3])
               : "memory");
}
__device__ __forceinline__ uint2 load_words(uint32_t address) {
  uint2 words;
  asm volatile("ld.shared.v2.b32 {%0,%1}, [%2];" : "=r"(words.x), "=r"(words.y) : "r"(address) : "memory");
  return words;
}
__device__ __forceinline__ void store_words(uint32_t address, uint32_t first, uint32_t second) {
  asm volatile("st.shared.v2.b32 [%0], {%1,%2};" ::"r"(address), "r"(first), "r"(second) : "memory");
}
__device__ __forceinline__ void store_word(uint32_t address, uint32_t word) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}

// Copies 16 bytes from global memory, or stores zeros if is_there is false, and then does not read `from`.
__device__ __forceinline__ void copy_chunk_async(uint32_t to, const void* from, bool is_there) {
  const int bytes = is_there ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
// The same for 4 bytes.
__device__ __forceinline__ void copy_word_async(uint32_t to, const void* from, bool is_there) {
  const int bytes = is_there ? 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most `Pending` of this thread's latest groups are under way.
template <int Pending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

}  // namespace tessella::device::ptx
