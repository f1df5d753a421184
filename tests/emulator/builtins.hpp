// The CUDA dialect on a host compiler: keywords, built-in variables and functions that device code uses.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "emulator.hpp"

#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__
#define __align__(bytes)
#define threadIdx (tessella::emulator::thread_idx())
#define blockIdx (tessella::emulator::block_idx())
#define gridDim (tessella::emulator::grid_dim())

struct uint2 {
  uint32_t x, y;
};
struct int4 {
  int x, y, z, w;
};
struct uint4 {
  uint32_t x, y, z, w;
};
struct float2 {
  float x, y;
};
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline float2 make_float2(float x, float y) { return {x, y}; }

template <typename A, typename B>
constexpr auto min(A a, B b) {
  return a < b ? a : b;
}
template <typename A, typename B>
constexpr auto max(A a, B b) {
  return a < b ? b : a;
}

inline uint32_t __float_as_uint(float x) { return std::bit_cast<uint32_t>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(uint32_t x) { return std::bit_cast<float>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline int __vimax3_s32(int a, int b, int c) { return max(max(a, b), c); }
// Bytes of b above those of a; a digit of the selector says which one of the eight.
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) result |= static_cast<uint32_t>(bytes >> (selector >> i * 4 & 7) * 8 & 0xFF) << i * 8;
  return result;
}
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __popc(uint32_t x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<uint32_t>(x)); }
inline uint32_t atomicAdd(uint32_t* to, uint32_t value) {
  const uint32_t before = *to;
  *to += value;
  return before;
}
inline uint32_t atomicMax(uint32_t* to, uint32_t value) {
  const uint32_t before = *to;
  if (before < value) *to = value;
  return before;
}

inline void __syncthreads() { tessella::emulator::named_barrier(0, tessella::emulator::num_threads(), true); }
inline int __syncthreads_or(int value) { return tessella::emulator::block_or(value != 0) ? 1 : 0; }
inline void __syncwarp() { tessella::emulator::exchange({}); }
template <typename T>
T __shfl_sync(uint32_t, T value, int lane, int width = 32) {
  static_assert(sizeof(T) <= sizeof(tessella::emulator::Given));
  tessella::emulator::Given mine{};
  std::memcpy(&mine, &value, sizeof(T));
  const int first = static_cast<int>(threadIdx.x % 32) / width * width;
  std::memcpy(&value, &tessella::emulator::exchange(mine)[first + lane % width], sizeof(T));
  return value;
}
template <typename T>
T __shfl_xor_sync(uint32_t mask, T value, int with) {
  return __shfl_sync(mask, value, static_cast<int>(threadIdx.x % 32) ^ with);
}
template <typename T>
T __shfl_down_sync(uint32_t mask, T value, int by) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  return __shfl_sync(mask, value, lane + by < 32 ? lane + by : lane);
}
inline uint32_t __ballot_sync(uint32_t, bool value) {
  const tessella::emulator::Given* given = tessella::emulator::exchange({{value ? 1u : 0u, 0, 0, 0}});
  uint32_t bits = 0;
  for (unsigned lane = 0; lane < 32; ++lane) bits |= given[lane].words[0] << lane;
  return bits;
}
inline uint32_t __reduce_or_sync(uint32_t, uint32_t value) {
  const tessella::emulator::Given* given = tessella::emulator::exchange({{value, 0, 0, 0}});
  uint32_t bits = 0;
  for (unsigned lane = 0; lane < 32; ++lane) bits |= given[lane].words[0];
  return bits;
}
inline bool __any_sync(uint32_t mask, bool value) { return __ballot_sync(mask, value) != 0; }
inline bool __all_sync(uint32_t mask, bool value) { return __ballot_sync(mask, value) == 0xFFFFFFFF; }
