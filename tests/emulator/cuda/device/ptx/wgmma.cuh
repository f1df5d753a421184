// Stands in for src/cuda/device/ptx/wgmma.cuh. A lane computes its own accumulators.
#pragma once

#include <array>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cuda/device/ptx/math.cuh"
#include "cuda/device/ptx/order.cuh"
#include "cuda/device/ptx/tensor_copy.cuh"
#include "emulator.hpp"
#include "portable/score_config.hpp"

namespace tessella::device::ptx {

using portable::Element;

// line: of the call. (std::source_location: not before clang 15.)
inline void fence_registers(int line = __builtin_LINE()) { emulator::as_warpgroup(line); }
inline void commit_products(int line = __builtin_LINE()) {
  emulator::as_warpgroup(line);
  emulator::commit(emulator::Work::products);
}
template <int Pending, int Blocks>
void wait_products(float (&)[Blocks][4], int line = __builtin_LINE()) {
  emulator::as_warpgroup(line);
  emulator::wait_groups(emulator::Work::products, Pending);
}

// A description of an operand as the matrix unit reads it (PTX, "matrix descriptor"): of the block's own memory.
class Described {
 public:
  explicit Described(uint64_t description)
      : first_(emulator::block_in_cluster() * emulator::kBlockBytes + bytes(description, 0)),
        leading_(bytes(description, 16)),
        stride_(bytes(description, 32)) {
    constexpr uint64_t kSwizzle128 = 1, kSwizzle64 = 2, kRest = 0x3FFFC000C000C000;  // others must be zero
    const uint64_t swizzle = description >> 62;
    row_bytes_ = swizzle == kSwizzle64 ? 64 : 128;
    if ((swizzle != kSwizzle128 && swizzle != kSwizzle64) || (description & kRest) != 0) {
      throw std::invalid_argument("a matrix descriptor that the emulator does not know");
    }
  }
  // Rows and sums contiguous: element (row, k), of type T.
  template <class T>
  T row_major(int row, int k) const {
    return emulator::load<T>(address(row / 8, row % 8, k * static_cast<int>(sizeof(T))));
  }
  // Columns contiguous: element (k, column), of 16 bits.
  uint16_t column_major(int k, int column) const {
    return emulator::load<uint16_t>(
        address(k / 8, k % 8, column % 64 * 2, static_cast<uint32_t>(column / 64) * leading_));
  }
  // What the product reads, `size` rows or columns, as chunks: each lane of a warp answers for every 32nd.
  void add_rows(std::vector<uint32_t>& chunks, int size) const {
    for (int i = lane(); i < size * 2; i += 32) chunks.push_back(address(i / 16, i / 2 % 8, i % 2 * 16));
  }
  void add_columns(std::vector<uint32_t>& chunks, int size) const {
    for (int i = lane(); i < size * 2; i += 32) {
      const int k = i % 16, column = i / 16 * 8;
      chunks.push_back(address(k / 8, k % 8, column % 64 * 2, static_cast<uint32_t>(column / 64) * leading_));
    }
  }

 private:
  static uint32_t bytes(uint64_t description, int from) {
    return static_cast<uint32_t>(description >> from & 0x3FFF) << 4;
  }
  static int lane() { return static_cast<int>(threadIdx.x % 32); }
  uint32_t address(int eight_rows, int row, int byte, uint32_t panel = 0) const {
    const auto inside = static_cast<uint32_t>(row * row_bytes_ + byte);
    return emulator::swizzled(first_ + panel + static_cast<uint32_t>(eight_rows) * stride_ + inside, row_bytes_);
  }

  uint32_t first_, leading_, stride_;
  int row_bytes_;
};

// What a product takes of an element: its bits, how many of them it sums over, and their values.
template <Element E>
struct OfElement {
  using Bits = uint16_t;
  static constexpr int kSummed = 16;
  static float value(Bits bits) {
    return E == Element::bf16 ? __uint_as_float(static_cast<uint32_t>(bits) << 16) : f16_to_float(bits);
  }
};
template <>
struct OfElement<Element::e4m3> {
  using Bits = uint8_t;
  static constexpr int kSummed = 32;
  static float value(Bits bits) { return portable::to_float(portable::Float8E4M3{bits}); }
};

enum class Contiguous { summed, columns };

template <Element E, int N>
struct WarpgroupMma {
  using Of = OfElement<E>;
  using Bits = typename Of::Bits;
  static constexpr int kSummed = Of::kSummed;

  template <class A, class B>
  static void multiply(float (&d)[N / 8][4], const A& a, const B& b, bool adds) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    for (int j = 0; j < N / 8; ++j) {
      for (int i = 0; i < 4; ++i) {
        double sum = adds ? static_cast<double>(d[j][i]) : 0;
        for (int k = 0; k < kSummed; ++k) {
          sum += static_cast<double>(a(i / 2, k)) * static_cast<double>(b(k, j * 8 + lane % 4 * 2 + i % 2));
        }
        d[j][i] = static_cast<float>(sum);
      }
    }
  }

  template <Contiguous B>
  static float right(const Described& b, int k, int n) {
    if constexpr (B == Contiguous::columns) {
      return Of::value(b.column_major(k, n));
    } else {
      return Of::value(b.row_major<Bits>(n, k));
    }
  }

  template <Contiguous B = Contiguous::summed>
  static void with_shared(float (&d)[N / 8][4], uint64_t a_description, uint64_t b_description, bool adds) {
    const int row = static_cast<int>(threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4);
    const Described a(a_description), b(b_description);
    std::vector<uint32_t> chunks;
    a.add_rows(chunks, 64);
    if constexpr (B == Contiguous::columns) {
      b.add_columns(chunks, N);
    } else {
      b.add_rows(chunks, N);
    }
    const auto piece = [&d, a, b, adds, row] {
      float left[2][kSummed];
      for (int r = 0; r < 2; ++r) {
        for (int k = 0; k < kSummed; ++k) left[r][k] = Of::value(a.row_major<Bits>(row + r * 8, k));
      }
      multiply(
          d, [&](int r, int k) { return left[r][k]; }, [&](int k, int n) { return right<B>(b, k, n); }, adds);
    };
    emulator::begin(emulator::Work::products, piece, std::move(chunks));
  }
  // a: lives until the product is waited for, as d does.
  template <Contiguous B = Contiguous::summed>
  static void with_registers(float (&d)[N / 8][4], const uint32_t (&a)[4], uint64_t b_description, bool adds) {
    const Described b(b_description);
    std::vector<uint32_t> chunks;
    if constexpr (B == Contiguous::columns) {
      b.add_columns(chunks, N);
    } else {
      b.add_rows(chunks, N);
    }
    const emulator::Given* given = emulator::exchange({{a[0], a[1], a[2], a[3]}});
    const unsigned first = threadIdx.x % 32 / 4 * 4;
    // A word holds consecutive columns, four lanes those of half of the product, two words of a lane both halves.
    constexpr unsigned kOfWord = 4 / sizeof(Bits), kHalf = kSummed / 2;
    std::array<std::array<float, kSummed>, 2> left;
    for (unsigned r = 0; r < 2; ++r) {
      for (unsigned k = 0; k < kSummed; ++k) {
        const uint32_t word = given[first + k % kHalf / kOfWord].words[k / kHalf * 2 + r];
        left[r][k] = Of::value(static_cast<Bits>(word >> k % kOfWord * sizeof(Bits) * 8));
      }
    }
    const auto piece = [&d, &a, b, left, adds, own = std::to_array(a)] {
      if (std::to_array(a) != own)
        throw std::logic_error("an operand's register was written before its product was there");
      multiply(
          d, [&](int r, int k) { return left[static_cast<size_t>(r)][static_cast<size_t>(k)]; },
          [&](int k, int n) { return right<B>(b, k, n); }, adds);
    };
    emulator::begin(emulator::Work::products, piece, std::move(chunks));
  }
};

}  // namespace tessella::device::ptx
