// 16 bytes of a row of x or of w in a thread's registers.
#pragma once

#include "cuda/device/ptx/global.cuh"
#include "cuda/device/tile/widened.cuh"
#include "portable/element.hpp"

namespace tessella::device {

// Elements that 16 bytes hold.
constexpr int chunk_elements(Element e) { return 16 / portable::size_bytes(e); }

// Elements of a row, of which there are `there` up to its end, none or less behind it: zeros stand for others. Vectors:
// chunks are aligned and whole, else elements are loaded one by one. Once: no other warp reads the row.
template <Element E, bool Vectors, bool Once>
__device__ __forceinline__ void load_row_chunk(uint32_t (&words)[4], const char* from, int32_t there) {
  constexpr int kBytes = portable::size_bytes(E), kInWord = 4 / kBytes;
  words[0] = words[1] = words[2] = words[3] = 0;
  if constexpr (Vectors && Once) {
    if (there > 0) ptx::load_once(words, from);
  } else if constexpr (Vectors) {
    if (there <= 0) return;
    const uint4 loaded = *reinterpret_cast<const uint4*>(from);
    words[0] = loaded.x, words[1] = loaded.y, words[2] = loaded.z, words[3] = loaded.w;
  } else {
#pragma unroll
    for (int i = 0; i < chunk_elements(E); ++i) {
      if (i >= there) break;
      uint32_t bits;
      if constexpr (kBytes == 4) {
        bits = reinterpret_cast<const uint32_t*>(from)[i];
      } else if constexpr (kBytes == 2) {
        bits = reinterpret_cast<const uint16_t*>(from)[i];
      } else {
        bits = reinterpret_cast<const uint8_t*>(from)[i];
      }
      words[i / kInWord] |= bits << i % kInWord * 8 * kBytes;
    }
  }
}

// N elements from the first word on, in their order.
template <Element E, int N>
__device__ __forceinline__ void words_to_floats(const uint32_t* words, float (&values)[N]) {
#pragma unroll
  for (int i = 0; i < N * portable::size_bytes(E) / 4; ++i) {
    if constexpr (E == Element::f32) {
      values[i] = __uint_as_float(words[i]);
    } else if constexpr (E == Element::bf16) {
      values[2 * i] = __uint_as_float(words[i] << 16);
      values[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000);
    } else if constexpr (E == Element::f16) {
      values[2 * i] = ptx::f16_to_float(static_cast<uint16_t>(words[i]));
      values[2 * i + 1] = ptx::f16_to_float(static_cast<uint16_t>(words[i] >> 16));
    } else {
      word_to_floats<E>(words[i], values + 4 * i);
    }
  }
}

}  // namespace tessella::device
