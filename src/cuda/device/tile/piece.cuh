// Pieces of rows in memory, as one thread moves them: one element, or 16 bytes.
#pragma once

#include "cuda/device/ptx/math.cuh"
#include "portable/score_config.hpp"

namespace tessella::device {

using portable::Element;

template <Element E>
__device__ __forceinline__ float to_float(const void* data, int64_t idx) {
  if constexpr (E == Element::f32) {
    return static_cast<const float*>(data)[idx];
  } else if constexpr (E == Element::bf16) {
    return __uint_as_float(static_cast<uint32_t>(static_cast<const uint16_t*>(data)[idx]) << 16);
  } else {
    return ptx::f16_to_float(static_cast<const uint16_t*>(data)[idx]);
  }
}

// Loads one element, or N elements that fill an aligned chunk of 16 bytes.
template <Element E, int N>
__device__ __forceinline__ void load_piece(const void* from, int64_t at, float (&values)[N]) {
  if constexpr (E == Element::f32 && N == 8) {  // beside states of 16 bits
    float low[4], high[4];
    load_piece<E>(from, at, low);
    load_piece<E>(from, at + 4, high);
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = low[i], values[i + 4] = high[i];
  } else if constexpr (E == Element::f32 && N == 4) {
    const uint4 words = *reinterpret_cast<const uint4*>(static_cast<const float*>(from) + at);
    values[0] = __uint_as_float(words.x), values[1] = __uint_as_float(words.y);
    values[2] = __uint_as_float(words.z), values[3] = __uint_as_float(words.w);
  } else if constexpr (E == Element::f32) {
    static_assert(N == 1);
    values[0] = static_cast<const float*>(from)[at];
  } else {
    const auto to_float = [](uint32_t bits) {
      return E == Element::bf16 ? __uint_as_float(bits << 16) : ptx::f16_to_float(static_cast<uint16_t>(bits));
    };
    const uint16_t* elements = static_cast<const uint16_t*>(from) + at;
    if constexpr (N == 1) {
      values[0] = to_float(elements[0]);
    } else {
      static_assert(N == 8);
      const uint4 four = *reinterpret_cast<const uint4*>(elements);
      const uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int i = 0; i < 4; ++i)
        values[2 * i] = to_float(words[i] & 0xFFFF), values[2 * i + 1] = to_float(words[i] >> 16);
    }
  }
}

// Stores such a piece. If E differs from the type it was loaded as, it has 8 or 32 bytes, aligned to 8 or 16.
template <Element E, int N>
__device__ __forceinline__ void store_piece(void* to, int64_t at, const float (&values)[N]) {
  if constexpr (E == Element::f32) {
    float* elements = static_cast<float*>(to) + at;
    if constexpr (N == 1) {
      elements[0] = values[0];
    } else {
#pragma unroll
      for (int i = 0; i < N; i += 4) {
        *reinterpret_cast<uint4*>(elements + i) = {__float_as_uint(values[i]), __float_as_uint(values[i + 1]),
                                                   __float_as_uint(values[i + 2]), __float_as_uint(values[i + 3])};
      }
    }
  } else {
    const auto pack = [](float low, float high) {
      return E == Element::bf16 ? ptx::pack_bf16(low, high) : ptx::pack_f16(low, high);
    };
    uint16_t* elements = static_cast<uint16_t*>(to) + at;
    if constexpr (N == 1) {
      elements[0] = static_cast<uint16_t>(pack(values[0], 0.0f));
    } else if constexpr (N == 4) {
      *reinterpret_cast<uint2*>(elements) = {pack(values[0], values[1]), pack(values[2], values[3])};
    } else {
      static_assert(N == 8);
      *reinterpret_cast<uint4*>(elements) = {pack(values[0], values[1]), pack(values[2], values[3]),
                                             pack(values[4], values[5]), pack(values[6], values[7])};
    }
  }
}

}  // namespace tessella::device
