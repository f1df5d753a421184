// What backward_rows has written for the queries of a tile, in shared memory: BackwardRowPair.
#pragma once

#include "cuda/device/ptx/shared.cuh"
#include "cuda/device/tile/keys.cuh"
#include "portable/backward_params.hpp"

namespace tessella::device {

using portable::BackwardRow, portable::BackwardRowPair;

// s_rows: the address of an even query's row, from which `query` counts.
__device__ __forceinline__ uint32_t row_pair(uint32_t s_rows, int query) {
  return s_rows + query / 2 * static_cast<int>(sizeof(BackwardRowPair));
}
__device__ __forceinline__ float load_lse(uint32_t s_rows, int query) {
  return __uint_as_float(ptx::load_word(row_pair(s_rows, query) + query % 2 * 4));
}
__device__ __forceinline__ float load_delta(uint32_t s_rows, int query) {
  return __uint_as_float(ptx::load_word(row_pair(s_rows, query) + 8 + query % 2 * 4));
}
__device__ __forceinline__ KeyRange load_row_keys(uint32_t s_rows, int query) {
  const uint2 keys = ptx::load_words(row_pair(s_rows, query) + 16 + query % 2 * 8);
  return {static_cast<int32_t>(keys.x), static_cast<int32_t>(keys.y)};
}
__device__ __forceinline__ BackwardRow load_row(uint32_t s_rows, int query) {
  const KeyRange keys = load_row_keys(s_rows, query);
  return {load_lse(s_rows, query), load_delta(s_rows, query), keys.begin, keys.end};
}

// Of `query`, an even one, and the next.
__device__ __forceinline__ void load_two_lse(uint32_t s_rows, int query, float (&lse)[2]) {
  const uint2 words = ptx::load_words(row_pair(s_rows, query));
  lse[0] = __uint_as_float(words.x);
  lse[1] = __uint_as_float(words.y);
}
__device__ __forceinline__ void load_two_deltas(uint32_t s_rows, int query, float (&delta)[2]) {
  const uint2 words = ptx::load_words(row_pair(s_rows, query) + 8);
  delta[0] = __uint_as_float(words.x);
  delta[1] = __uint_as_float(words.y);
}
// begin and end alone: LSE and delta stay as they are.
__device__ __forceinline__ void load_two_keys(uint32_t s_rows, int query, BackwardRow (&rows)[2]) {
  const uint4 keys = ptx::load_chunk(row_pair(s_rows, query) + 16);
  rows[0].begin = static_cast<int32_t>(keys.x);
  rows[0].end = static_cast<int32_t>(keys.y);
  rows[1].begin = static_cast<int32_t>(keys.z);
  rows[1].end = static_cast<int32_t>(keys.w);
}
// Without begin and end.
__device__ __forceinline__ void load_two_rows(uint32_t s_rows, int query, BackwardRow (&rows)[2]) {
  const uint4 words = ptx::load_chunk(row_pair(s_rows, query));
  rows[0].lse = __uint_as_float(words.x);
  rows[1].lse = __uint_as_float(words.y);
  rows[0].delta = __uint_as_float(words.z);
  rows[1].delta = __uint_as_float(words.w);
}

}  // namespace tessella::device
