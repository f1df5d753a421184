// Stands in for src/cuda/device/ptx/cluster.cuh. What a block sends is there for the other one at some time.
#pragma once

#include <array>

#include "emulator.hpp"

namespace tessella::device::ptx {

inline constexpr bool kHasClusters = true;

inline void arrive_at_cluster() { emulator::arrive_at_cluster(); }
inline void wait_for_cluster() { emulator::wait_for_cluster(); }
inline uint32_t address_in(uint32_t block, uint32_t address) { return emulator::address_in(block, address); }
template <size_t N>
void send(uint32_t to, const float (&x)[N], uint32_t barrier) {
  emulator::later([to, barrier, words = std::to_array(x)] {
    emulator::receive(to, words.data(), sizeof words);
    emulator::complete_bytes(barrier, sizeof words);
  });
}
inline void load_floats_in(float (&x)[4], uint32_t there) { emulator::load_in(there, x, sizeof x); }
inline float load_float_in(uint32_t there) {
  float x;
  emulator::load_in(there, &x, sizeof x);
  return x;
}
inline void wait_for_sent(uint32_t barrier, uint32_t parity) { emulator::wait(barrier, parity); }

}  // namespace tessella::device::ptx
