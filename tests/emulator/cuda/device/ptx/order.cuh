// Stands in for src/cuda/device/ptx/order.cuh.
#pragma once

#include <cstdint>

namespace tessella::device::ptx {

inline void keep_loads_in_place() {}
inline void keep_in_place(float&) {}
template <int Blocks>
void keep_in_place(float (&)[Blocks][4]) {}
inline void forget(int32_t&) {}
inline void forget(uint32_t&) {}
inline void forget(const char*&) {}
inline int lane_anew() { return static_cast<int>(threadIdx.x % 32); }

}  // namespace tessella::device::ptx
