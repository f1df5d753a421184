// Rotary position embedding of a row on its way from memory to memory (portable/rotary.hpp). Each thread handles a few
// angles.
#pragma once

#include "cuda/device/tile/piece.cuh"
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
  // These operations are not contracted, so that a CPU computes the same bits.
  return {__fsub_rn(__fmul_rn(first, cos[0]), __fmul_rn(second, sin[0])),
          __fadd_rn(__fmul_rn(second, cos[0]), __fmul_rn(first, sin[0]))};
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

// One number of a row that is turned, by its column.
template <Element E, Element AngleElement, bool kIsInterleaved>
__device__ __forceinline__ float rotated_at(const void* from, int64_t from_at, const Angles& angles, int32_t column,
                                            int32_t rotary_dim) {
  const int32_t half = rotary_dim / 2;
  const bool is_first = kIsInterleaved ? column % 2 == 0 : column < half;
  const int32_t j = kIsInterleaved ? column / 2 : is_first ? column : column - half;
  float first[1], second[1];
  load_piece<E>(from, from_at + portable::first_column(j, kIsInterleaved), first);
  load_piece<E>(from, from_at + portable::second_column(j, rotary_dim, kIsInterleaved), second);
  const auto pair = turned<AngleElement>(angles, j, first[0], second[0]);
  return is_first ? pair.first : pair.second;
}

// Loads N values from a column on and rotates those among the row's first rotary_dim. More than two values are one
// piece, whose values are all rotated or none.
template <Element E, Element AngleElement, int N, bool kIsInterleaved>
__device__ __forceinline__ void load_rotated(const void* from, int64_t from_at, const Angles& angles, int32_t column,
                                             int32_t rotary_dim, float (&values)[N]) {
  if constexpr (N <= 2) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      float value[1];
      if (column + i < rotary_dim) {
        value[0] = rotated_at<E, AngleElement, kIsInterleaved>(from, from_at, angles, column + i, rotary_dim);
      } else {
        load_piece<E>(from, from_at + column + i, value);
      }
      values[i] = value[0];
    }
  } else {
    load_piece<E>(from, from_at + column, values);
    if (column >= rotary_dim) return;
    if constexpr (kIsInterleaved) {
#pragma unroll
      for (int i = 0; i < N; i += 2) {
        const auto pair = turned<AngleElement>(angles, (column + i) / 2, values[i], values[i + 1]);
        values[i] = pair.first, values[i + 1] = pair.second;
      }
    } else {
      const int32_t half = rotary_dim / 2;
      const bool is_first = column < half;
      const int32_t j = is_first ? column : column - half;
      float others[N];
      load_piece<E>(from, from_at + (is_first ? column + half : j), others);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const auto pair =
            turned<AngleElement>(angles, j + i, is_first ? values[i] : others[i], is_first ? others[i] : values[i]);
        values[i] = is_first ? pair.first : pair.second;
      }
    }
  }
}

// Calls of rotate_pieces() that a row takes.
template <int N, bool kIsInterleaved>
__device__ __forceinline__ int32_t rotary_units(int32_t rotary_dim) {
  return kIsInterleaved && N > 1 ? rotary_dim / N : rotary_dim / (2 * N);
}

}  // namespace tessella::device
