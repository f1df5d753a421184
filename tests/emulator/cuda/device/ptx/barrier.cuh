// Stands in for src/cuda/device/ptx/barrier.cuh.
#pragma once

#include "emulator.hpp"

namespace tessella::device::ptx {

inline void init_barrier(uint32_t barrier, uint32_t count) { emulator::init_barrier(barrier, count); }
inline void publish_barriers() {}
inline void arrive(uint32_t barrier) { emulator::arrive(barrier, 0); }
inline void arrive_expecting(uint32_t barrier, uint32_t bytes) { emulator::arrive(barrier, bytes); }
inline void wait(uint32_t barrier, uint32_t parity) { emulator::wait(barrier, parity); }
inline bool elect() { return threadIdx.x % 32 == 0; }
inline void named_wait(int barrier, int threads) { emulator::named_barrier(barrier, threads, true); }
inline void named_arrive(int barrier, int threads) { emulator::named_barrier(barrier, threads, false); }
inline void sync_cluster() { emulator::sync_cluster(); }
template <int Registers>
void give_registers() {}
template <int Registers>
void take_registers() {}

}  // namespace tessella::device::ptx
