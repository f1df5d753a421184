// Hopper's copy engine (TMA): boxes of a tensor, described by a tensor map, into shared memory and from there.
#pragma once

#include "portable/hopper.hpp"

namespace tessella::device::ptx {

// Fetches the map itself before it is needed.
__device__ __forceinline__ void prefetch(const portable::TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(&map)) : "memory");
}

// The box at (column, row, head, batch) to shared memory; what lies outside the tensor becomes zeros. The barrier gets
// the box's bytes. One thread calls it.
__device__ __forceinline__ void copy_box(uint32_t to, const portable::TensorMap& map, uint32_t barrier, int32_t column,
                                         int32_t row, int32_t head, int32_t batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(to),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch)
      : "memory");
}

// Consecutive bytes, a multiple of 16 at an address that is one, to shared memory. The barrier gets them.
__device__ __forceinline__ void copy_bytes(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

// Brings the box to the L2 cache.
__device__ __forceinline__ void prefetch_box(const portable::TensorMap& map, int32_t column, int32_t row, int32_t head,
                                             int32_t batch) {
  asm volatile(
      "cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(reinterpret_cast<uint64_t>(&map)),
      "r"(column), "r"(row), "r"(head), "r"(batch)
      : "memory");
}

// The box at (column, row, head, batch) from shared memory; what lies outside the tensor is left out. One thread calls
// it, after the fence_async() of those who stored there.
__device__ __forceinline__ void store_box(const portable::TensorMap& map, uint32_t from, int32_t column, int32_t row,
                                          int32_t head, int32_t batch) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
                   reinterpret_cast<uint64_t>(&map)),
               "r"(from), "r"(column), "r"(row), "r"(head), "r"(batch)
               : "memory");
}
// Orders this thread's earlier stores to shared memory before later accesses by the copy engine and the matrix unit.
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// The same for other threads' stores to these bytes of shared memory, which a barrier has made visible to this thread,
// and for global memory, whose words this thread has acquired: PTX wants a proxy fence anywhere between store and copy
// (memory consistency model, causality order), and one that names shared memory orders nothing else. It costs the
// storing warps nothing.
__device__ __forceinline__ void fence_async_memory(uint32_t, uint32_t) {
  asm volatile("fence.proxy.async;" ::: "memory");
}

// Consecutive floats from shared memory: adds them to those in memory, or stores them. One thread calls it, after a
// fence_async(). bytes: a multiple of 16.
__device__ __forceinline__ void add_floats(float* to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void store_floats(float* to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void commit_boxes() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until the shared memory of all boxes that this thread stored has been read, or until they are in memory.
__device__ __forceinline__ void wait_boxes() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ __forceinline__ void wait_boxes_written() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

}  // namespace tessella::device::ptx
