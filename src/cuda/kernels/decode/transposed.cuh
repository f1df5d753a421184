// The two products of decoding on one warp's fragments: S^T = K Q^T and O^T += V^T P^T. Keys, then columns of v, are
// the 16 rows of a matrix instruction, and few query rows its 8 columns: no column is wasted on rows that are not
// there.
//
// fp32 as in multiply.cuh: two tf32 terms, and long sums made of short ones.
#pragma once

#include "cuda/device/tile/multiply.cuh"
#include "cuda/device/tile/tile.cuh"
#include "cuda/device/tile/widened.cuh"

namespace tessella::device {

// Blocks: of 8 query rows. s[n]: lane l has keys l / 4 and l / 4 + 8 of query rows 8 n + l % 4 * 2 and the next.
template <Element E>
struct Transposed {
  using A = typename Multiply<E>::A;
  static constexpr int kProbWords = 2;  // of a lane, for 16 keys and 8 rows

  __device__ static __forceinline__ A left(const uint32_t (&words)[4]) { return Multiply<E>::split(words); }
  // Stores probabilities of 16 keys from the layout of scores to shared memory, as the right operand reads them.
  __device__ static __forceinline__ void store_probs(uint32_t to, const float (&p)[4], int lane) {
    ptx::store_words(to + lane * 8, ptx::transpose(Multiply<E>::pack(p[0], p[1])),
                     ptx::transpose(Multiply<E>::pack(p[2], p[3])));
  }
  struct Probs {
    uint2 b;
  };
  __device__ static __forceinline__ Probs load_probs(uint32_t from, int lane) {
    return {ptx::load_words(from + lane * 8)};
  }
  // Columns [16 piece, 16 piece + 16) of 16 rows of v.
  template <class TileV>
  struct Values {
    A a;
    __device__ __forceinline__ Values(uint32_t tile, int piece, int lane) {
      const uint32_t at = tile + TileV::offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
      uint32_t words[4];
      ptx::load_matrices_transposed(words, TileV::advance(at, 0, piece * 2));
      a = left(words);
    }
  };
  template <class OfV>
  __device__ static __forceinline__ void multiply(float (&o)[4], const OfV& v, const Probs& p) {
    Multiply<E>::multiply(o, v.a, p.b.x, p.b.y);
  }
};

template <>
struct Transposed<Element::f32> {
  using A = typename Multiply<Element::f32>::A;
  using M = Multiply<Element::f32>;

  __device__ static __forceinline__ A left(const uint32_t (&words)[4]) {
    A a;
#pragma unroll
    for (int i = 0; i < 4; ++i) M::split(words[i], a.high[i], a.low[i]);
    return a;
  }
  // [key][row]
  __device__ static __forceinline__ void store_probs(uint32_t to, const float (&p)[4], int lane) {
    const uint32_t at = to + (lane / 4 * 8 + lane % 4 * 2) * 4;
    ptx::store_words(at, __float_as_uint(p[0]), __float_as_uint(p[1]));
    ptx::store_words(at + 8 * 32, __float_as_uint(p[2]), __float_as_uint(p[3]));
  }
  struct Probs {
    uint32_t b[4];
  };
  __device__ static __forceinline__ Probs load_probs(uint32_t from, int lane) {
    Probs p;
#pragma unroll
    for (int i = 0; i < 4; ++i) p.b[i] = ptx::load_word(from + ((i * 4 + lane % 4) * 8 + lane / 4) * 4);
    return p;
  }
  template <class TileV>
  struct Values {
    A a[2];  // of 8 keys each
    __device__ __forceinline__ Values(uint32_t tile, int piece, int lane) {
#pragma unroll
      for (int step = 0; step < 2; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = step * 8 + i / 2 * 4 + lane % 4, column = i % 2 * 8 + lane / 4;
          const uint32_t word = ptx::load_word(tile + TileV::offset(key, piece * 4 + column / 4) + column % 4 * 4);
          M::split<false>(word, a[step].high[i], a[step].low[i]);
        }
      }
    }
  };
  template <class OfV>
  __device__ static __forceinline__ void multiply(float (&o)[4], const OfV& v, const Probs& p) {
    float sum[4] = {0, 0, 0, 0};
#pragma unroll
    for (int step = 0; step < 2; ++step) M::multiply<false>(sum, v.a[step], p.b[step * 2], p.b[step * 2 + 1]);
#pragma unroll
    for (int i = 0; i < 4; ++i) o[i] += sum[i];
  }
};

// Keys and values of 8 or 4 bits are widened.
template <Element E, Element C>
struct KeyOperand : WidenedOperand<E> {};
template <Element E>
struct KeyOperand<E, E> {
  using Type = typename Transposed<E>::A;
};
template <Element E, Element C, class TileV>
struct ValueOperand {
  using Type = WidenedValues<E, C, TileV>;
};
template <Element E, class TileV>
struct ValueOperand<E, E, TileV> {
  using Type = typename Transposed<E>::template Values<TileV>;
};

// The right operands of query rows, prepared as multiply.cuh's prepare_q() does. They are read from shared memory each
// time, or held in registers if they are few.
template <Element E, class TileQ, int Blocks, int Steps>
class QueryOperands {
 public:
  static constexpr bool kInRegisters = E != Element::f32 && Blocks * Steps <= 16;
  static constexpr int kPanelSteps = TileQ::kPanelChunks / 2;
  static_assert(Steps % 2 == 0);

  __device__ __forceinline__ QueryOperands(uint32_t tile, int lane)
      : address_(tile + TileQ::offset(lane % 8, lane / 8)) {
    if constexpr (kInRegisters) {
#pragma unroll
      for (int n = 0; n < Blocks; ++n) {
#pragma unroll
        for (int step = 0; step < Steps; step += 2) load(registers_[n][step / 2], n, step);
      }
    }
  }
  // b0 and b1 of steps `step` (even) and step + 1 of a panel.
  __device__ __forceinline__ void get(uint32_t (&b)[4], int n, int panel, int step) const {
    if constexpr (kInRegisters) {
#pragma unroll
      for (int i = 0; i < 4; ++i) b[i] = registers_[n][step / 2][i];
    } else {
      load(b, n, step, panel);
    }
  }

 private:
  __device__ __forceinline__ void load(uint32_t (&b)[4], int n, int step, int panel = 0) const {
    ptx::load_matrices(b, TileQ::advance(address_, n * 8, step * 2) + panel * TileQ::kPanelBytes);
  }
  uint32_t address_;
  uint32_t registers_[kInRegisters ? Blocks : 1][kInRegisters ? Steps / 2 : 1][4];
};

// s = k . q^T of 16 keys.
template <Element E, Element C, class TileK, int Steps, int Blocks, class Queries>
__device__ __forceinline__ void multiply_kq(float (&s)[Blocks][4], uint32_t tile_k, const Queries& queries, int lane) {
  // fp32 multiplies one panel of q's columns at a time and is not unrolled, since its many instructions hide the loads.
  // Caches of 4 bits take two panels, because one load of k covers both. Long rows take three, or one if o needs more
  // registers.
  constexpr bool kIsLong = Steps > 32;
  constexpr int kPanels = kIsLong && Blocks == 1 ? 3 : Multiply<E>::kSumsApart && C == Element::i4 ? 2 : 1;
  constexpr int kPanelSteps = Multiply<E>::kSumsApart || kIsLong ? Queries::kPanelSteps * kPanels : Steps;
  static_assert(Steps % kPanelSteps == 0);
  const uint32_t k = tile_k + TileK::offset(lane % 16, lane / 16);
  // With few blocks, even and odd steps sum separately, which halves the dependent chains. fp32's chains are short.
  constexpr int kChains = Blocks <= 2 ? 2 : 1;
  float sums[kChains][Blocks][4];
  clear(sums);
#pragma unroll
  for (int n = 0; n < Blocks; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
  const auto add = [&] {
#pragma unroll
    for (int n = 0; n < Blocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] += kChains == 2 ? sums[0][n][i] + sums[kChains - 1][n][i] : sums[0][n][i];
    }
    clear(sums);
  };
  uint32_t loaded[4];  // of k in 8 or 4 bits, for several steps
#pragma unroll 1
  for (int panel = 0; panel < Steps / kPanelSteps * kPanels; panel += kPanels) {
#pragma unroll
    for (int step = 0; step < kPanelSteps; step += 2) {
      typename KeyOperand<E, C>::Type left[2];
      if constexpr (portable::is_quantized(C)) {
        load_widened_keys<E, C, TileK>(left, loaded, TileK::advance(k, 0, panel / kPanels * 2), step);
      } else {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          uint32_t words[4];
          ptx::load_matrices(words, TileK::advance(k, 0, (step + i) * 2) + panel * TileK::kPanelBytes);
          left[i] = Transposed<E>::left(words);
        }
      }
#pragma unroll
      for (int n = 0; n < Blocks; ++n) {
        uint32_t b[4];
        queries.get(b, n, panel, step);
        Multiply<E>::multiply(sums[0][n], left[0], b[0], b[1]);
        Multiply<E>::multiply(sums[kChains - 1][n], left[1], b[2], b[3]);
      }
    }
    if constexpr (Multiply<E>::kSumsApart) add();
  }
  if constexpr (!Multiply<E>::kSumsApart) add();
}

}  // namespace tessella::device
