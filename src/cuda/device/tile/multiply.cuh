// The two products of attention on one warp's fragments, for every element type: S = Q K^T and O += P V.
//
// A step is the depth of one instruction: 16 columns (or keys) of 16-bit elements, 8 of fp32. Fragments of both fill
// two 16-byte chunks of a row a step, so that loads are the same code. fp32 is split into two tf32 terms, three
// products of four (3xTF32; the one left out is below 2^-22): 11 + 11 bits of mantissa.
#pragma once

#include "cuda/device/ptx/math.cuh"
#include "cuda/device/ptx/mma.cuh"
#include "cuda/device/ptx/shared.cuh"
#include "portable/score_config.hpp"

namespace tessella::device {

using portable::Element;

template <Element E>
struct Multiply {
  static constexpr int kDepth = 16;
  static constexpr bool kSumsApart = false;
  struct A {
    uint32_t r[4];
  };

  __device__ static __forceinline__ void multiply(float (&c)[4], const A& a, uint32_t b0, uint32_t b1) {
    if constexpr (E == Element::bf16) {
      ptx::mma_bf16(c, a.r, b0, b1);
    } else {
      ptx::mma_f16(c, a.r, b0, b1);
    }
  }
  __device__ static __forceinline__ uint32_t pack(float low, float high) {
    if constexpr (E == Element::bf16) {
      return ptx::pack_bf16(low, high);
    } else {
      return ptx::pack_f16(low, high);
    }
  }
  __device__ static __forceinline__ A split(const uint32_t (&words)[4]) {
    return {{words[0], words[1], words[2], words[3]}};
  }
  // Two 16 x 8 blocks of probabilities, in the layout of accumulators, already have the layout of an operand.
  template <int Blocks>
  __device__ static __forceinline__ A probs(const float (&p)[Blocks][4], int step) {
    const auto& first = p[step * 2];
    const auto& second = p[step * 2 + 1];
    return {
        {pack(first[0], first[1]), pack(first[2], first[3]), pack(second[0], second[1]), pack(second[2], second[3])}};
  }
  // The lane's address in a tile of v, and the right operands of two 8-column blocks for the 16 keys from `key`.
  template <class Tile>
  __device__ static __forceinline__ uint32_t v_address(uint32_t tile, int lane) {
    return tile + Tile::offset(lane % 16, lane / 16);
  }
  template <class Tile>
  __device__ static __forceinline__ void load_v(uint32_t (&b)[4], uint32_t address, int key, int column) {
    ptx::load_matrices_transposed(b, Tile::advance(address, key, column / 8));
  }
};

template <>
struct Multiply<Element::f32> {
  static constexpr int kDepth = 8;
  // Matrix instructions truncate below the sum's last bit. Long sums are therefore made of short ones, which the fp32
  // unit adds with rounding.
  static constexpr bool kSumsApart = true;
  struct A {
    uint32_t high[4], low[4];
  };
  // A value that is exactly a tf32, as elements of 8 and 4 bits are.
  struct ExactA {
    uint32_t r[4];
  };

  // The nearest tf32 and the rest. On Hopper the rest is rounded to tf32; elsewhere the matrix instruction truncates
  // it, by up to 2^-23 of x. Scores need the rounding because they become exponents; v does not. Infinity becomes NaN,
  // and NaN stays.
  template <bool Rounds = true>
  __device__ static __forceinline__ void split(uint32_t word, uint32_t& high, uint32_t& low) {
    const float x = __uint_as_float(word), nearest = ptx::to_tf32(x);
    high = __float_as_uint(nearest);
    low = __float_as_uint(Rounds && ptx::kRoundsToTf32 ? ptx::to_tf32(x - nearest) : x - nearest);
  }
  // Splits q for each key tile. q is prepared, so the rest is exactly a tf32.
  __device__ static __forceinline__ A split(const uint32_t (&words)[4]) {
    A a;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float x = __uint_as_float(words[i]), nearest = ptx::to_tf32(x);
      a.high[i] = __float_as_uint(nearest);
      a.low[i] = __float_as_uint(x - nearest);
    }
    return a;
  }
  template <bool Rounds = true>
  __device__ static __forceinline__ void multiply(float (&c)[4], const A& a, uint32_t b0, uint32_t b1) {
    uint32_t high[2], low[2];
    split<Rounds>(b0, high[0], low[0]);
    split<Rounds>(b1, high[1], low[1]);
    ptx::mma_tf32(c, a.low, high[0], high[1]);
    ptx::mma_tf32(c, a.high, low[0], low[1]);
    ptx::mma_tf32(c, a.high, high[0], high[1]);
  }
  template <bool Rounds = true>
  __device__ static __forceinline__ void multiply(float (&c)[4], const ExactA& a, uint32_t b0, uint32_t b1) {
    uint32_t high[2], low[2];
    split<Rounds>(b0, high[0], low[0]);
    split<Rounds>(b1, high[1], low[1]);
    ptx::mma_tf32(c, a.r, low[0], low[1]);
    ptx::mma_tf32(c, a.r, high[0], high[1]);
  }
  // Lane t of a row holds keys 2t and 2t + 1 of the block and gives them as keys t and t + 4 of the instruction;
  // load_v() reads the rows of v in the same order.
  template <int Blocks>
  __device__ static __forceinline__ A probs(const float (&p)[Blocks][4], int step) {
    const auto& block = p[step];
    A a;
#pragma unroll
    for (int i = 0; i < 4; ++i) split(__float_as_uint(block[i / 2 + i % 2 * 2]), a.high[i], a.low[i]);
    return a;
  }
  template <class Tile>
  __device__ static __forceinline__ uint32_t v_address(uint32_t tile, int lane) {
    return tile + Tile::offset(lane % 4 * 2, lane / 16) + lane / 4 % 4 * 4;
  }
  template <class Tile>
  __device__ static __forceinline__ void load_v(uint32_t (&b)[4], uint32_t address, int key, int column) {
    // The odd row of a pair is the next row. Its swizzle differs in the lowest bit if every row has its own swizzle.
    constexpr uint32_t kSwizzle = Tile::kPanelChunks == 8 ? 16 : 0;
    constexpr uint32_t kRow = Tile::kPanelChunks * 16;
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      const uint32_t even = Tile::advance(address, key, column / 4 + block * 2);
      b[block * 2] = ptx::load_word(even);
      b[block * 2 + 1] = ptx::load_word((even ^ kSwizzle) + kRow);
    }
  }
};

template <int MBlocks, int Blocks>
__device__ __forceinline__ void clear(float (&sums)[MBlocks][Blocks][4]) {
#pragma unroll
  for (int m = 0; m < MBlocks; ++m) {
#pragma unroll
    for (int j = 0; j < Blocks; ++j) sums[m][j][0] = sums[m][j][1] = sums[m][j][2] = sums[m][j][3] = 0;
  }
}
template <int MBlocks, int Blocks>
__device__ __forceinline__ void add(float (&to)[MBlocks][Blocks][4], const float (&sums)[MBlocks][Blocks][4]) {
#pragma unroll
  for (int m = 0; m < MBlocks; ++m) {
#pragma unroll
    for (int j = 0; j < Blocks; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) to[m][j][i] += sums[m][j][i];
    }
  }
}

// Prepares a word of q for the products. The products give scores for |scale|, so a negative scale flips q's sign. fp32
// values are rounded to two tf32 terms (22 bits), except the largest number, infinity and NaN, which stay.
template <Element E>
__device__ __forceinline__ uint32_t prepared_q(uint32_t word, bool is_negative) {
  const uint32_t signs = !is_negative ? 0 : E == Element::f32 ? 0x80000000 : 0x80008000;
  constexpr uint32_t kLast = 0x7F7FFFFE;
  const bool rounds = E == Element::f32 && (word & 0x7FFFFFFF) <= kLast;
  return (rounds ? (word + 1) & ~1u : word) ^ signs;
}
// Prepares a tile of q for multiply_qk(). The block needs a barrier afterwards.
template <Element E, class TileQ, int Threads>
__device__ __forceinline__ void prepare_q(uint32_t tile_q, int thread, bool is_negative) {
  const auto prepared = [&](uint32_t word) { return prepared_q<E>(word, is_negative); };
  constexpr int kUnroll = E == Element::f32 ? 2 : 1;
#pragma unroll kUnroll
  for (int at = thread * 16; at < TileQ::kBytes; at += Threads * 16) {
    const uint4 words = ptx::load_chunk(tile_q + at);
    ptx::store_chunk(tile_q + at, {prepared(words.x), prepared(words.y), prepared(words.z), prepared(words.w)});
  }
}

// s = q . k^T for 16 MBlocks rows from `row` and all keys of the tile, with q prepared. Operands of q are loaded one
// step ahead, those of k `Ahead` loads ahead (fp32: neither). meanwhile() is called once, after the first step's
// instructions.
template <Element E, int Columns, class TileQ, class TileK, int Ahead = 1, int MBlocks, int Blocks, class Meanwhile>
__device__ __forceinline__ void multiply_qk(float (&s)[MBlocks][Blocks][4], uint32_t tile_q, uint32_t tile_k, int row,
                                            int lane, const Meanwhile& meanwhile) {
  constexpr int kSteps = Columns / Multiply<E>::kDepth;
  constexpr int kPairs = Blocks / 2;
  uint32_t q = tile_q + TileQ::offset(row + lane % 16, lane / 16);
  uint32_t k = tile_k + TileK::offset(lane / 16 * 8 + lane % 8, lane / 8 % 2);
  clear(s);
  if constexpr (Multiply<E>::kSumsApart) {
    // fp32 multiplies one panel of columns at a time and is not unrolled: its many instructions hide the loads, and
    // unrolled loads would fill the registers.
    constexpr int kApart = 4;
    static_assert(kSteps % kApart == 0 && TileQ::kPanelChunks == 8 && TileK::kPanelChunks == 8);
#pragma unroll 1
    for (int panel = 0; panel < kSteps / kApart; ++panel) {
      float part[MBlocks][Blocks][4];
      clear(part);
#pragma unroll
      for (int step = 0; step < kApart; ++step) {
        typename Multiply<E>::A left[MBlocks];
#pragma unroll
        for (int m = 0; m < MBlocks; ++m) {
          uint32_t a[4];
          ptx::load_matrices(a, TileQ::advance(q, m * 16, step * 2));
          left[m] = Multiply<E>::split(a);
        }
#pragma unroll
        for (int pair = 0; pair < kPairs; ++pair) {
          uint32_t right[4];
          ptx::load_matrices(right, TileK::advance(k, pair * 16, step * 2));
#pragma unroll
          for (int m = 0; m < MBlocks; ++m) {
            Multiply<E>::multiply(part[m][pair * 2], left[m], right[0], right[1]);
            Multiply<E>::multiply(part[m][pair * 2 + 1], left[m], right[2], right[3]);
          }
        }
      }
      add(s, part);
      if (panel == 0) meanwhile();
      q += TileQ::kPanelBytes;
      k += TileK::kPanelBytes;
    }
  } else {
    uint32_t a[2][MBlocks][4], b[Ahead + 1][4];
    const auto load_q = [&](int step) {
#pragma unroll
      for (int m = 0; m < MBlocks; ++m) ptx::load_matrices(a[step % 2][m], TileQ::advance(q, m * 16, step * 2));
    };
    const auto load_k = [&](int at) {  // of two 8-key blocks
      ptx::load_matrices(b[at % (Ahead + 1)], TileK::advance(k, at % kPairs * 16, at / kPairs * 2));
    };
    load_q(0);
#pragma unroll
    for (int at = 0; at < Ahead && at < kSteps * kPairs; ++at) load_k(at);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step + 1 < kSteps) load_q(step + 1);
      typename Multiply<E>::A left[MBlocks];
#pragma unroll
      for (int m = 0; m < MBlocks; ++m) left[m] = Multiply<E>::split(a[step % 2][m]);
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        const int at = step * kPairs + pair;
        if (at + Ahead < kSteps * kPairs) load_k(at + Ahead);
        const auto& right = b[at % (Ahead + 1)];
#pragma unroll
        for (int m = 0; m < MBlocks; ++m) {
          Multiply<E>::multiply(s[m][pair * 2], left[m], right[0], right[1]);
          Multiply<E>::multiply(s[m][pair * 2 + 1], left[m], right[2], right[3]);
        }
      }
      if (step == 0) meanwhile();
    }
  }
}

// o += p . v for all keys of the tile; p in the layout of accumulators. prepare(j) is called before block columns j and
// j + 1 of p are read, and runs beside the matrix instructions of the step before. Ahead: as above.
template <Element E, class TileV, int Ahead = 1, int MBlocks, int Blocks, int BlocksV, class Prepare>
__device__ __forceinline__ void multiply_pv(float (&o)[MBlocks][BlocksV][4], const float (&p)[MBlocks][Blocks][4],
                                            uint32_t tile_v, int lane, const Prepare& prepare) {
  constexpr int kDepth = Multiply<E>::kDepth;
  constexpr int kSteps = Blocks * 8 / kDepth;
  constexpr int kPairs = BlocksV / 2;
  const uint32_t v = Multiply<E>::template v_address<TileV>(tile_v, lane);
  if constexpr (Multiply<E>::kSumsApart) {
    // Adds the products of 16 keys to four blocks of columns at a time.
    constexpr int kGroup = 16 / kDepth;
#pragma unroll
    for (int group = 0; group < kSteps; group += kGroup) {
      prepare(group * kDepth / 8);
      typename Multiply<E>::A left[kGroup][MBlocks];
#pragma unroll
      for (int step = 0; step < kGroup; ++step) {
#pragma unroll
        for (int m = 0; m < MBlocks; ++m) left[step][m] = Multiply<E>::probs(p[m], group + step);
      }
#pragma unroll
      for (int first = 0; first < BlocksV; first += 4) {
        float part[MBlocks][4][4];
        clear(part);
#pragma unroll
        for (int step = 0; step < kGroup; ++step) {
#pragma unroll
          for (int pair = 0; pair < 2 && first + pair * 2 < BlocksV; ++pair) {
            uint32_t right[4];
            Multiply<E>::template load_v<TileV>(right, v, (group + step) * kDepth, (first + pair * 2) * 8);
#pragma unroll
            for (int m = 0; m < MBlocks; ++m) {
              Multiply<E>::template multiply<false>(part[m][pair * 2], left[step][m], right[0], right[1]);
              Multiply<E>::template multiply<false>(part[m][pair * 2 + 1], left[step][m], right[2], right[3]);
            }
          }
        }
#pragma unroll
        for (int m = 0; m < MBlocks; ++m) {
#pragma unroll
          for (int j = 0; j < 4 && first + j < BlocksV; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) o[m][first + j][i] += part[m][j][i];
          }
        }
      }
    }
  } else {
    uint32_t b[Ahead + 1][4];
    const auto load_v = [&](int at) {  // of two 8-column blocks
      Multiply<E>::template load_v<TileV>(b[at % (Ahead + 1)], v, at / kPairs * kDepth, at % kPairs * 16);
    };
#pragma unroll
    for (int at = 0; at < Ahead && at < kSteps * kPairs; ++at) load_v(at);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      prepare(step * 2);
      typename Multiply<E>::A left[MBlocks];
#pragma unroll
      for (int m = 0; m < MBlocks; ++m) left[m] = Multiply<E>::probs(p[m], step);
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        const int at = step * kPairs + pair;
        if (at + Ahead < kSteps * kPairs) load_v(at + Ahead);
        const auto& right = b[at % (Ahead + 1)];
#pragma unroll
        for (int m = 0; m < MBlocks; ++m) {
          Multiply<E>::multiply(o[m][pair * 2], left[m], right[0], right[1]);
          Multiply<E>::multiply(o[m][pair * 2 + 1], left[m], right[2], right[3]);
        }
      }
    }
  }
}

}  // namespace tessella::device
