// A ring of buffers between a producer warp and consumer warps, and the position of one of the two sides in it.
#pragma once

#include "cuda/device/ptx/barrier.hpp"

namespace tessella::device {

// The barriers are in shared memory: `full` of each slot, then `empty` of each.
template <int Slots>
class Ring {
 public:
  static constexpr int kBytes = 2 * Slots * 8;

  __device__ explicit Ring(uint32_t barriers) : barriers_(barriers) {}

  // One thread calls it for all.
  __device__ static void init(uint32_t barriers, uint32_t num_fillers, uint32_t num_emptiers) {
    for (int slot = 0; slot < Slots; ++slot) {
      ptx::init_barrier(barriers + slot * 8, num_fillers);
      ptx::init_barrier(barriers + (Slots + slot) * 8, num_emptiers);
    }
  }

  // The same position in the ring whose barriers are `index` rings further.
  __device__ Ring at(int index) const {
    Ring other = *this;
    other.barriers_ += index * kBytes;
    return other;
  }

  // The offset of this slot's buffer from the first slot's. `bytes` is even, so the phase bit drops out of the product.
  __device__ uint32_t offset(uint32_t bytes) const { return Slots > 1 ? (at_ - kFirst) * bytes : 0; }
  __device__ uint32_t full() const { return barriers_ + offset(8); }
  __device__ void wait_full() const { ptx::wait(full(), parity()); }
  __device__ void arrive_full() const { ptx::arrive(full()); }
  __device__ void arrive_full_expecting(uint32_t bytes) const { ptx::arrive_expecting(full(), bytes); }
  // Returns at once if the slot was never filled.
  __device__ void wait_empty() const { ptx::wait(empty(), parity() ^ 1); }
  // Waits until the slot's current content has been emptied.
  __device__ void wait_emptied() const { ptx::wait(empty(), parity()); }
  __device__ void arrive_empty() const { ptx::arrive(empty()); }
  __device__ void advance() {
    if ((++at_ & ~kPhase) == 0) at_ += kFirst;
  }
  // The position before the latest advance().
  __device__ Ring previous() const {
    Ring other = *this;
    other.at_ -= (at_ & ~kPhase) == kFirst ? 1 + kFirst : 1;
    return other;
  }

 private:
  // The top bit is the slot's phase. The bits below count slots up to the carry into the phase, which takes few
  // instructions: the multiplying warps have none to spare.
  static constexpr uint32_t kPhase = 1u << 31, kFirst = kPhase - Slots;
  __device__ uint32_t empty() const { return full() + Slots * 8; }
  __device__ uint32_t parity() const { return at_ >> 31; }

  uint32_t barriers_;
  uint32_t at_ = kFirst;
};

}  // namespace tessella::device
