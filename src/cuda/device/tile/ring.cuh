// A ring of buffers between a producer warp and consumer warps, and the position of one of the two sides in it.
//
// A wait by parity tells neighbouring phases of a barrier apart, not a phase from the one after the next. So who waits
// for a phase must know that the one before it has ended. A position here moves so that it meets every phase of the
// slots that it comes to, and takes no other barrier at the same position: a side that waits at each of its positions
// knows all earlier phases. The emulator reports a side that has not waited.
#pragma once

#include "cuda/device/ptx/barrier.cuh"

namespace tessella::device {

// A slot of a ring in one of its phases. The barriers are in shared memory: `full` of each slot, for each of Fills
// fills that a slot gets one after the other, then `empty` of each.
template <int Slots, int Fills = 1>
class Slot {
 public:
  static constexpr int kBytes = (Fills + 1) * Slots * 8;

  // The offset of this slot's buffer from the first slot's. `bytes` is even, so the phase bit drops out of the product.
  __device__ uint32_t offset(uint32_t bytes) const { return Slots > 1 ? (at_ - kFirst) * bytes : 0; }
  template <int Fill = 0>
  __device__ uint32_t full() const {
    static_assert(Fill < Fills);
    return barriers_ + Fill * Slots * 8 + offset(8);
  }
  template <int Fill = 0>
  __device__ void wait_full() const {
    ptx::wait(full<Fill>(), parity());
  }
  template <int Fill = 0>
  __device__ void arrive_full() const {
    ptx::arrive(full<Fill>());
  }
  __device__ void arrive_full_expecting(uint32_t bytes) const { ptx::arrive_expecting(full(), bytes); }
  // Returns at once if the slot was never filled.
  __device__ void wait_empty() const { ptx::wait(empty(), parity() ^ 1); }
  __device__ void arrive_empty() const { ptx::arrive(empty()); }

 protected:
  // The top bit is the slot's phase. The bits below count slots up to the carry into the phase, which takes few
  // instructions: the multiplying warps have none to spare.
  static constexpr uint32_t kPhase = 1u << 31, kFirst = kPhase - Slots;

  __device__ explicit Slot(uint32_t barriers, uint32_t at) : barriers_(barriers), at_(at) {}
  __device__ uint32_t empty() const { return barriers_ + Fills * Slots * 8 + offset(8); }
  __device__ uint32_t parity() const { return at_ >> 31; }

  uint32_t barriers_;
  uint32_t at_;
};

// The position of a side that takes every Step-th slot, from the slot `first` on, which is below Step.
template <int Slots, int Fills = 1, int Step = 1>
class Ring : public Slot<Slots, Fills> {
 public:
  using Base = Slot<Slots, Fills>;
  static_assert(Slots % Step == 0, "else it misses phases of the slots that it takes");

  __device__ explicit Ring(uint32_t barriers, int first = 0) : Base(barriers, Base::kFirst + first) {}

  // One thread calls it for all.
  __device__ static void init(uint32_t barriers, uint32_t num_fillers, uint32_t num_emptiers) {
    for (int i = 0; i < Fills * Slots; ++i) ptx::init_barrier(barriers + i * 8, num_fillers);
    for (int i = 0; i < Slots; ++i) ptx::init_barrier(barriers + (Fills * Slots + i) * 8, num_emptiers);
  }

  __device__ void advance() {
    if (((this->at_ += Step) & ~Base::kPhase) < Step) this->at_ += Base::kFirst;
  }
  // The slot before the latest advance().
  __device__ Base previous() const {
    static_assert(Step == 1);
    Ring other = *this;
    other.at_ -= (this->at_ & ~Base::kPhase) == Base::kFirst ? 1 + Base::kFirst : 1;
    return other;
  }
};

// The position of a producer that fills a slot in each of several rings, which lie one behind the other.
template <class OfOne>
class Rings : private OfOne {
 public:
  using OfOne::OfOne, OfOne::advance;
  __device__ typename OfOne::Base operator[](int ring) const {
    Rings other = *this;
    other.barriers_ += ring * OfOne::kBytes;
    return other;
  }
};

}  // namespace tessella::device
