// Stands in for src/cuda/device/ptx/wgmma.hpp. A lane computes its own accumulators.
#pragma once

#include <array>

#include "cuda/device/ptx/math.hpp"
#include "cuda/device/ptx/tensor_copy.hpp"
#include "emulator.hpp"
#include "portable/forward_config.hpp"

namespace tessella::device::ptx {

using portable::Element;

// line: of the call. (std::source_location: not before clang 15.)
inline void fence_registers(int line = __builtin_LINE()) { emulator::as_warpgroup(line); }
inline void commit_products(int line = __builtin_LINE()) {
  emulator::as_warpgroup(line);
  emulator::commit(emulator::Work::products);
}
inline void keep_in_place(float&) {}
template <int Pending, int Blocks>
void wait_products(float (&)[Blocks][4], int line = __builtin_LINE()) {
  emulator::as_warpgroup(line);
  emulator::wait_groups(emulator::Work::products, Pending);
}

class Operand {
 public:
  explicit Operand(uint32_t address, uint32_t panel_bytes = 0) : address_(address), panel_bytes_(panel_bytes) {}
  uint64_t at(uint32_t bytes) const { return static_cast<uint64_t>(panel_bytes_) << 32 | (address_ + bytes); }

 private:
  uint32_t address_, panel_bytes_;
};

template <Element E>
float to_float(uint16_t bits) {
  return E == Element::bf16 ? __uint_as_float(static_cast<uint32_t>(bits) << 16) : f16_to_float(bits);
}

enum class Contiguous { summed, columns };

template <Element E, int N>
struct WarpgroupMma {
  // Rows and sums contiguous: element (row, k).
  static float row_major(uint64_t operand, int row, int k) {
    const auto address = static_cast<uint32_t>(operand);
    return to_float<E>(emulator::load<uint16_t>(
        emulator::swizzled(address + static_cast<uint32_t>(row / 8 * 1024 + row % 8 * 128 + k * 2))));
  }
  // Columns contiguous: element (k, column).
  static float column_major(uint64_t operand, int k, int column) {
    const auto address = static_cast<uint32_t>(operand), panel = static_cast<uint32_t>(operand >> 32);
    return to_float<E>(emulator::load<uint16_t>(
        emulator::swizzled(address + static_cast<uint32_t>(column / 64) * panel +
                           static_cast<uint32_t>(k / 8 * 1024 + k % 8 * 128 + column % 64 * 2))));
  }
  template <class A, class B>
  static void multiply(float (&d)[N / 8][4], const A& a, const B& b, bool adds) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    for (int j = 0; j < N / 8; ++j) {
      for (int i = 0; i < 4; ++i) {
        double sum = adds ? static_cast<double>(d[j][i]) : 0;
        for (int k = 0; k < 16; ++k) {
          sum += static_cast<double>(a(i / 2, k)) * static_cast<double>(b(k, j * 8 + lane % 4 * 2 + i % 2));
        }
        d[j][i] = static_cast<float>(sum);
      }
    }
  }

  static void with_shared(float (&d)[N / 8][4], uint64_t a, uint64_t b, bool adds) {
    const int row = static_cast<int>(threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4);
    emulator::begin(emulator::Work::products, [&d, a, b, adds, row] {
      float left[2][16];
      for (int r = 0; r < 2; ++r) {
        for (int k = 0; k < 16; ++k) left[r][k] = row_major(a, row + r * 8, k);
      }
      multiply(
          d, [&](int r, int k) { return left[r][k]; }, [&](int k, int n) { return row_major(b, n, k); }, adds);
    });
  }
  template <Contiguous B>
  static void with_registers(float (&d)[N / 8][4], const uint32_t (&a)[4], uint64_t b, bool adds) {
    const emulator::Given* given = emulator::exchange({{a[0], a[1], a[2], a[3]}});
    const unsigned first = threadIdx.x % 32 / 4 * 4;
    std::array<std::array<float, 16>, 2> left;
    for (unsigned r = 0; r < 2; ++r) {
      for (unsigned k = 0; k < 16; ++k) {
        const uint32_t word = given[first + k % 8 / 2].words[k / 8 * 2 + r];
        left[r][k] = to_float<E>(static_cast<uint16_t>(k % 2 == 0 ? word : word >> 16));
      }
    }
    emulator::begin(emulator::Work::products, [&d, b, left, adds] {
      multiply(
          d, [&](int r, int k) { return left[static_cast<size_t>(r)][static_cast<size_t>(k)]; },
          [&](int k, int n) { return B == Contiguous::columns ? column_major(b, k, n) : row_major(b, n, k); }, adds);
    });
  }
};

}  // namespace tessella::device::ptx
