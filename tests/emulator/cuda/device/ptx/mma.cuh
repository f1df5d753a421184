// Stands in for src/cuda/device/ptx/mma.cuh: a lane computes its own accumulators out of what all lanes give.
#pragma once

#include "cuda/device/ptx/math.cuh"
#include "emulator.hpp"

namespace tessella::device::ptx {

// left(row, k) and right(k, column) read what the lanes gave.
template <int Depth, class Left, class Right>
void multiply_16x8(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, const Left& left,
                   const Right& right) {
  emulator::Given of_a[32], of_b[32];
  std::memcpy(of_a, emulator::exchange({{a[0], a[1], a[2], a[3]}}), sizeof of_a);
  std::memcpy(of_b, emulator::exchange({{b0, b1, 0, 0}}), sizeof of_b);
  const unsigned lane = threadIdx.x % 32;
  for (unsigned i = 0; i < 4; ++i) {
    double sum = static_cast<double>(c[i]);
    for (unsigned k = 0; k < Depth; ++k) {
      sum += static_cast<double>(left(of_a, lane / 4, i / 2, k)) *
             static_cast<double>(right(of_b, k, lane % 4 * 2 + i % 2));
    }
    c[i] = static_cast<float>(sum);
  }
}

template <class ToFloat>
void mma_16_bits(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, const ToFloat& to_float) {
  const auto half = [&](uint32_t word, unsigned k) {
    return to_float(static_cast<uint16_t>(k % 2 == 0 ? word : word >> 16));
  };
  multiply_16x8<16>(
      c, a, b0, b1,
      [&](const emulator::Given* given, unsigned row, unsigned eight, unsigned k) {
        return half(given[row * 4 + k % 8 / 2].words[k / 8 * 2 + eight], k);
      },
      [&](const emulator::Given* given, unsigned k, unsigned column) {
        return half(given[column * 4 + k % 8 / 2].words[k / 8], k);
      });
}
inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma_16_bits(c, a, b0, b1, [](uint16_t bits) { return __uint_as_float(static_cast<uint32_t>(bits) << 16); });
}
inline void mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma_16_bits(c, a, b0, b1, [](uint16_t bits) { return f16_to_float(bits); });
}
inline void mma_tf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  multiply_16x8<8>(
      c, a, b0, b1,
      [](const emulator::Given* given, unsigned row, unsigned eight, unsigned k) {
        return __uint_as_float(given[row * 4 + k % 4].words[k / 4 * 2 + eight] & 0xFFFFE000);
      },
      [](const emulator::Given* given, unsigned k, unsigned column) {
        return __uint_as_float(given[column * 4 + k % 4].words[k / 4] & 0xFFFFE000);
      });
}

}  // namespace tessella::device::ptx
