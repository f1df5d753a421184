// Keys and values of 8 or 4 bits as the left operands of decoding's two products (kernels/decode/transposed.cuh).
// Shared memory holds them as they are stored. The words of a matrix load are widened to q's type in registers, without
// loss.
//
// A lane's word of a matrix load is two half words of H = 2 or 4 elements. Pair i is element i of the low half and
// element i of the high one, and pairs 2 h and 2 h + 1 go to step h, or piece h, of the H / 2 in a chunk:
//   k      the word is columns [2 H t, 2 H t + 2 H) of row g: pair i is columns 2 H t + i and 2 H t + i + H. The order
//          of columns does not change a product, and q's columns have the same order (query_words).
//   v      transposed, a half is columns [H g, H g + H) of key 2 t or 2 t + 1: pair i is column H g + i of both keys,
//          and rows g and g + 8 of the operand are columns H g + 2 h and H g + 2 h + 1 (value_column).
//
// If q is fp32, they are tf32 without a second term. Steps are of 8 columns or keys, and there are no pairs:
//   k      element i is column 2 H t + i, and elements 2 h and 2 h + 1 go to step h of the H in a chunk.
//   v      columns as above. The load takes keys in such an order that a lane's two are t and t + 4, as p has them.
#pragma once

#include "cuda/device/tile/multiply.cuh"
#include "cuda/device/tile/tile.cuh"

namespace tessella::device {

// Elements of half a word; 1 of 16 bits, and of fp32.
constexpr int half_elements(Element c) { return portable::is_quantized(c) ? 16 / portable::bits_of(c) : 1; }

// Words that a lane's word becomes: pairs of 16 bits, or floats.
constexpr int widened_words(Element e, Element c) { return half_elements(c) * (e == Element::f32 ? 2 : 1); }

// Without Hopper's instruction: turns the high byte of each half into a pair of f16. The byte's magnitude shifted right
// by one is the f16 of 2^-8 times its value; NaN also needs the exponent's top bit.
__device__ __forceinline__ uint32_t float8_to_f16_by_bits(uint32_t word) {
  const uint32_t magnitude = word & 0x7F007F00;
  const uint32_t nan = (magnitude + 0x01000100) & 0x80008000;
  return ptx::fma_f16((magnitude | nan) >> 1 | (word & 0x80008000), 0x5C005C00, 0x80008000);  // 256, -0
}

// The floats of a pair of f16, as a pair of bf16.
__device__ __forceinline__ uint32_t pack_bf16_of_f16(uint32_t low, uint32_t high) {
  return ptx::pack_bf16(ptx::f16_to_float(static_cast<uint16_t>(low)), ptx::f16_to_float(static_cast<uint16_t>(high)));
}

// The word's elements in their order, as floats.
template <Element C, bool HasInstruction>
__device__ __forceinline__ void widen_to_floats(uint32_t word, uint32_t (&floats)[2 * half_elements(C)]) {
  if constexpr (C == Element::e4m3) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {  // elements 2 i and 2 i + 1, or i and i + 2
      const uint32_t pair =
          HasInstruction ? ptx::float8_to_f16(word >> i * 16) : float8_to_f16_by_bits(i == 0 ? word << 8 : word);
      floats[HasInstruction ? 2 * i : i] = __float_as_uint(ptx::f16_to_float(static_cast<uint16_t>(pair)));
      floats[HasInstruction ? 2 * i + 1 : i + 2] =
          __float_as_uint(ptx::f16_to_float(static_cast<uint16_t>(pair >> 16)));
    }
  } else if constexpr (C == Element::i8) {  // 2^23 + 128 + x, less that
    const uint32_t raised = word ^ 0x80808080;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      floats[i] = __float_as_uint(__uint_as_float(__byte_perm(raised, 0x4B000000, 0x7440 + i)) - 8388736.0f);
    }
  } else {  // 2^23 + 8 + x, less that
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      floats[i] = __float_as_uint(__uint_as_float(ptx::and_xor(word >> i * 4, 0xF, 0x4B000008)) - 8388616.0f);
    }
  }
}

// Four elements of 8 bits in a word, in their order.
template <Element E>
__device__ __forceinline__ void word_to_floats(uint32_t word, float* values) {
  if constexpr (E == Element::e5m2) {  // the upper half of f16
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = ptx::f16_to_float(static_cast<uint16_t>((word >> i * 8 & 0xFF) << 8));
  } else {
    uint32_t floats[4];
    widen_to_floats<E, ptx::kWidensFloat8>(word, floats);
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = __uint_as_float(floats[i]);
  }
}

template <Element E, Element C, bool HasInstruction = ptx::kWidensFloat8>
__device__ __forceinline__ void widen(uint32_t word, uint32_t (&pairs)[widened_words(E, C)]) {
  static_assert(portable::is_of_caches(C) && !portable::is_quantized(E));
  constexpr bool kIsBf16 = E == Element::bf16;
  if constexpr (E == Element::f32) {
    widen_to_floats<C, HasInstruction>(word, pairs);
  } else if constexpr (C == Element::e4m3 && HasInstruction) {
    if constexpr (kIsBf16) {
      const uint32_t low = ptx::float8_to_f16(word), high = ptx::float8_to_f16(word >> 16);
      pairs[0] = pack_bf16_of_f16(low, high);
      pairs[1] = pack_bf16_of_f16(low >> 16, high >> 16);
    } else {
      pairs[0] = ptx::float8_to_f16(__byte_perm(word, 0, 0x4420));
      pairs[1] = ptx::float8_to_f16(__byte_perm(word, 0, 0x4431));
    }
  } else if constexpr (C == Element::e4m3) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t pair = float8_to_f16_by_bits(i == 0 ? word << 8 : word);
      pairs[i] = kIsBf16 ? pack_bf16_of_f16(pair, pair >> 16) : pair;
    }
  } else if constexpr (C == Element::i8) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t bytes = word >> i * 8;
      if constexpr (kIsBf16) {  // 128 + its lowest 7 bits, less 128 or 256 by its sign
        pairs[i] = ptx::fma_bf16(ptx::and_or(bytes, 0x007F007F, 0x43004300), 0x3F803F80,
                                 ptx::and_or(bytes, 0x00800080, 0xC300C300));
      } else {  // 1024 + 128 + x, less that
        pairs[i] = ptx::fma_f16(ptx::and_xor(bytes, 0x00FF00FF, 0x64806480), 0x3C003C00, 0xE480E480);
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kIsBf16) {  // 128 + 8 + x, less that
        pairs[i] = ptx::fma_bf16(ptx::and_xor(word >> i * 4, 0x000F000F, 0x43084308), 0x3F803F80, 0xC308C308);
      } else if (i % 2 == 0) {  // 1024 + 8 + x, less that
        pairs[i] = ptx::fma_f16(ptx::and_xor(word >> i * 4, 0x000F000F, 0x64086408), 0x3C003C00, 0xE408E408);
      } else {  // 1024 + 16 (8 + x), of which a sixteenth, less 64 + 8
        pairs[i] = ptx::fma_f16(ptx::and_xor(word >> (i - 1) * 4, 0x00F000F0, 0x64806480), 0x2C002C00, 0xD480D480);
      }
    }
  }
}

// A left operand of such elements.
template <Element E>
struct WidenedOperand {
  using Type = typename Multiply<E>::A;
};
template <>
struct WidenedOperand<Element::f32> {
  using Type = Multiply<Element::f32>::ExactA;
};

// Left operands of two steps of k, from `step` (even) on. words: the matrix load that holds them.
template <Element E, Element C, class TileK>
__device__ __forceinline__ void load_widened_keys(typename WidenedOperand<E>::Type (&left)[2], uint32_t (&words)[4],
                                                  uint32_t address, int step) {
  constexpr int kWords = widened_words(E, C), kStepsOfChunk = kWords / 2;
  if (step % (2 * kStepsOfChunk) == 0) ptx::load_matrices(words, TileK::advance(address, 0, step / kStepsOfChunk));
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int at = (step + i) % (2 * kStepsOfChunk), chunk = at / kStepsOfChunk, h = at % kStepsOfChunk;
    uint32_t rows[kWords], later_rows[kWords];  // eight further down
    widen<E, C>(words[chunk * 2], rows);
    widen<E, C>(words[chunk * 2 + 1], later_rows);
    left[i] = {{rows[2 * h], later_rows[2 * h], rows[2 * h + 1], later_rows[2 * h + 1]}};
  }
}

// The left operand of 16 columns of 16 rows of v, in the column order of value_column().
template <Element E, Element C, class TileV>
struct WidenedValues {
  typename Multiply<E>::A a;
  __device__ __forceinline__ WidenedValues(uint32_t tile, int piece, int lane) {
    constexpr int kHalf = half_elements(C), kPiecesOfChunk = kHalf / 2;
    uint32_t words[2], keys[kHalf], later_keys[kHalf];
    ptx::load_matrices_transposed(words, TileV::advance(tile + TileV::offset(lane % 16, 0), 0, piece / kPiecesOfChunk));
    widen<E, C>(words[0], keys);
    widen<E, C>(words[1], later_keys);
    const bool is_second = piece % kPiecesOfChunk != 0;
    const auto of = [=](const uint32_t(&pairs)[kHalf], int i) { return is_second ? pairs[kHalf - 2 + i] : pairs[i]; };
    a = {{of(keys, 0), of(keys, 1), of(later_keys, 0), of(later_keys, 1)}};
  }
};

template <Element C, class TileV>
struct WidenedValues<Element::f32, C, TileV> {
  Multiply<Element::f32>::ExactA a[2];  // of 8 keys each
  __device__ __forceinline__ WidenedValues(uint32_t tile, int piece, int lane) {
    constexpr int kHalf = half_elements(C), kPiecesOfChunk = kHalf / 2;
    const int key = lane / 8 % 2 * 8 + lane % 8 / 2 + lane % 2 * 4;
    uint32_t words[2];
    ptx::load_matrices_transposed(words, TileV::advance(tile + TileV::offset(key, 0), 0, piece / kPiecesOfChunk));
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      uint32_t floats[2 * kHalf];
      widen<Element::f32, C>(words[step] >> piece % kPiecesOfChunk * 8, floats);
      a[step] = {{floats[0], floats[1], floats[kHalf], floats[kHalf + 1]}};
    }
  }
};

// The column of v of a lane's sum i of a piece.
template <Element C>
__device__ __forceinline__ int value_column(int piece, int lane, int i) {
  if constexpr (!portable::is_quantized(C)) {
    return piece * 16 + lane / 4 + i / 2 * 8;
  } else {
    constexpr int kHalf = half_elements(C), kPiecesOfChunk = kHalf / 2;
    return piece / kPiecesOfChunk * 8 * kHalf + lane / 4 * kHalf + piece % kPiecesOfChunk * 2 + i / 2;
  }
}

// Stores the columns of chunk `chunk` of a query row (eight, or four of fp32) in the order of such keys' products.
template <Element E, Element C, class TileQ>
__device__ __forceinline__ void store_query_words(uint32_t tile, int row, int chunk, const uint32_t (&words)[4]) {
  if constexpr (!portable::is_quantized(C)) {
    ptx::store_chunk(tile + TileQ::offset(row, chunk), words);
    return;
  }
  if constexpr (E == Element::f32) {
    constexpr int kWords = widened_words(E, C);
    const int at = chunk * 4 / kWords, t = at % 4, first = chunk * 4 % kWords;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      ptx::store_word(tile + TileQ::offset(row, at / 4 * kWords + first + i) + static_cast<uint32_t>(t) * 4, words[i]);
    }
    return;
  }
  constexpr int kHalf = half_elements(C);
#pragma unroll
  for (int first = 0; first < 4; first += kHalf) {  // words of as many columns as a lane's word of k
    const int at = (chunk * 4 + first) / kHalf, t = at % 4;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const uint32_t low = words[first + i / 2], high = words[first + i / 2 + kHalf / 2];
      ptx::store_word(tile + TileQ::offset(row, at / 4 * kHalf + i) + static_cast<uint32_t>(t) * 4,
                      __byte_perm(low, high, i % 2 == 0 ? 0x5410 : 0x7632));
    }
  }
}

}  // namespace tessella::device
