// Rotary position embedding of a row in memory, on its way to another: portable/rotary.hpp, a thread a few angles.
#pragma once

#include "cuda/device/tile/piece.hpp"
#include "portable/rotary.hpp"

namespace tessella::device {

// A row of angles.
struct Angles {
  const void* cos;
  const void* sin;
  int64_t cos_at, sin_at;  // elements from the tables' beginning
};

template <Element E>
__device__ __forceinline__ portable::Rotated<float> turned(const Angles& angles, int64_t j, float first, float second) {
  float cos[1], sin[1];
  load_piece<E>(angles.cos, angles.cos_at + j, cos);
  load_piece<E>(angles.sin, angles.sin_at + j, sin);
  return {__fmaf_rn(first, cos[0], -(second * sin[0])), __fmaf_rn(second, cos[0], first * sin[0])};
}

// Pieces of N elements that turn together; from and into begin at the row's first column and may be the same.
template <Element E, Element AngleElement, int N, bool kIsInterleaved>
__device__ __forceinline__ void rotate_pieces(const void* from, int64_t from_at, void* into, int64_t into_at,
                                              const Angles& angles, int32_t unit, int32_t rotary_dim) {
  if constexpr (kIsInterleaved && N > 1) {  // neighbours are of one piece
    float row[N];
    load_piece<E>(from, from_at + unit * N, row);
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      const auto pair = turned<AngleElement>(angles, (unit * N + i) / 2, row[i], row[i + 1]);
      row[i] = pair.first, row[i + 1] = pair.second;
    }
    store_piece<E>(into, into_at + unit * N, row);
  } else {
    const int64_t first_at = portable::first_column(int64_t{unit} * N, kIsInterleaved);
    const int64_t second_at = portable::second_column(int64_t{unit} * N, rotary_dim, kIsInterleaved);
    float first[N], second[N];
    load_piece<E>(from, from_at + first_at, first);
    load_piece<E>(from, from_at + second_at, second);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const auto pair = turned<AngleElement>(angles, int64_t{unit} * N + i, first[i], second[i]);
      first[i] = pair.first, second[i] = pair.second;
    }
    store_piece<E>(into, into_at + first_at, first);
    store_piece<E>(into, into_at + second_at, second);
  }
}

// Calls of rotate_pieces() that a row takes.
template <int N, bool kIsInterleaved>
__device__ __forceinline__ int32_t rotary_units(int32_t rotary_dim) {
  return kIsInterleaved && N > 1 ? rotary_dim / N : rotary_dim / (2 * N);
}

}  // namespace tessella::device
