// Between tensors in memory and AMX tiles: K, V and Q in, O out. Head dims are padded with zeros to multiples of 32.
//
//   K   [block of 32 keys][step of 32 dims][2][16 keys][32 dims]          A tiles of S^T = K Q^T
//   V^T [unit][panel of 32 dims][block][2][16 dims][32 keys]              A tiles of O^T = V^T P^T
//   Q   [step of 32 dims][2][16 pairs of dims][16 rows][2]                B tiles of S^T
//   O^T [panel of 32 dims][2][2][16 dims][16 rows] fp32                   C tiles: dims halves x row halves
//
// Include inside a target region only (target-inl.hpp).
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>

#include "core/dtype.hpp"
#include "cpu/amx/tiles-inl.hpp"

namespace tessella::cpu::amx {

inline constexpr int kStepDims = 32;

inline const uint16_t* elements(const std::byte* address) { return reinterpret_cast<const uint16_t*>(address); }

// First `count` of 32 lanes.
inline __mmask32 lanes32(int64_t count) {
  return count >= 32 ? ~__mmask32{0} : static_cast<__mmask32>((uint32_t{1} << std::max<int64_t>(count, 0)) - 1);
}
inline __mmask16 lanes16(int64_t count) { return static_cast<__mmask16>(lanes32(std::min<int64_t>(count, 16))); }

// Transposes 16 x 16 dwords in place.
[[gnu::always_inline]] inline void transpose16(__m512i r[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88);
    t[4 + i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xdd);
    t[8 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
    t[12 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
    r[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd);
    r[4 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0x88);
    r[12 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0xdd);
  }
}

// One block of K, `num_keys` of 32 keys; the others become zero. stride in elements.
inline void pack_k_block(const uint16_t* k, int64_t stride, int num_keys, int64_t head_dim, uint16_t* tiles) {
  for (int64_t dim = 0; dim < head_dim; dim += kStepDims, tiles += kPairElements) {
    const __mmask32 dims = lanes32(head_dim - dim);
    for (int key = 0; key < num_keys; ++key) {
      _mm512_store_si512(tiles + key * 32, _mm512_maskz_loadu_epi16(dims, k + key * stride + dim));
    }
    for (int key = num_keys; key < 32; ++key) _mm512_store_si512(tiles + key * 32, _mm512_setzero_si512());
  }
}

// One block of V, transposed; keys whose bit in `keys` is 0 become zero. Panels lie panel_stride elements apart.
// Returns false if some element packed was not finite.
inline bool pack_v_block(const uint16_t* v, int64_t stride, uint32_t keys, int64_t head_dim, uint16_t* tiles,
                         int64_t panel_stride) {
  const __m512i exponent = _mm512_set1_epi16(0x7F80);
  __mmask32 not_finite = 0;
  for (int64_t dim = 0; dim < head_dim; dim += kStepDims, tiles += panel_stride) {
    const __mmask32 dims = lanes32(head_dim - dim);
    __m512i low[16], high[16];
#pragma GCC unroll 16
    for (int pair = 0; pair < 16; ++pair) {
      const __mmask32 even_dims = keys >> (2 * pair) & 1 ? dims : 0;
      const __mmask32 odd_dims = keys >> (2 * pair + 1) & 1 ? dims : 0;
      const __m512i even = _mm512_maskz_loadu_epi16(even_dims, v + 2 * pair * stride + dim);
      const __m512i odd = _mm512_maskz_loadu_epi16(odd_dims, v + (2 * pair + 1) * stride + dim);
      not_finite |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(even, exponent), exponent) |
                    _mm512_cmpeq_epi16_mask(_mm512_and_si512(odd, exponent), exponent);
      low[pair] = _mm512_unpacklo_epi16(even, odd);  // dims 0-3, 8-11, 16-19, 24-27 of both keys
      high[pair] = _mm512_unpackhi_epi16(even, odd);
    }
    transpose16(low);
    transpose16(high);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      const int row = i / 4 * 8 + i % 4;
      _mm512_store_si512(tiles + row * 32, low[i]);
      _mm512_store_si512(tiles + (row + 4) * 32, high[i]);
    }
  }
  return not_finite == 0;
}

// 32 rows of Q from their addresses.
inline void pack_q(const uint16_t* const* rows, int64_t head_dim, uint16_t* tiles) {
  for (int64_t dim = 0; dim < head_dim; dim += kStepDims) {
    const __mmask32 dims = lanes32(head_dim - dim);
    for (int half = 0; half < 2; ++half, tiles += kTileElements) {
      __m512i r[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) r[i] = _mm512_maskz_loadu_epi16(dims, rows[16 * half + i] + dim);
      transpose16(r);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) _mm512_store_si512(tiles + i * 32, r[i]);
    }
  }
}

// Indices that interleave the 64 words of two vectors, for words [begin, begin + 16) of both.
inline __m512i pair_lanes(int begin) {
  const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i even = _mm512_add_epi32(lane, _mm512_set1_epi32(begin));
  return _mm512_or_si512(even, _mm512_slli_epi32(_mm512_add_epi32(even, _mm512_set1_epi32(32)), 16));
}

// 32 rows from their addresses, two rows in a dword: [step][2][16 pairs of rows][16 dims][2], B tiles of a product over
// rows. Steps lie step_elements apart.
inline void pack_row_pairs(const uint16_t* const* rows, int64_t head_dim, uint16_t* tiles, int64_t step_elements) {
  const __m512i low = pair_lanes(0), high = pair_lanes(16);
  for (int64_t dim = 0; dim < head_dim; dim += kStepDims, tiles += step_elements) {
    const __mmask32 dims = lanes32(head_dim - dim);
    for (int pair = 0; pair < 16; ++pair) {
      const __m512i even = _mm512_maskz_loadu_epi16(dims, rows[2 * pair] + dim);
      const __m512i odd = _mm512_maskz_loadu_epi16(dims, rows[2 * pair + 1] + dim);
      _mm512_store_si512(tiles + pair * 32, _mm512_permutex2var_epi16(even, low, odd));
      _mm512_store_si512(tiles + kTileElements + pair * 32, _mm512_permutex2var_epi16(even, high, odd));
    }
  }
}

// 32 elements, as `dtype`, at out.
[[gnu::always_inline]] inline void store_row(std::byte* out, core::DType dtype, __mmask32 dims, __m512 low,
                                             __m512 high) {
  const __mmask16 low_dims = static_cast<__mmask16>(dims);
  const __mmask16 high_dims = static_cast<__mmask16>(dims >> 16);
  if (dtype == core::DType::bf16) {
    _mm512_mask_storeu_epi16(out, dims, (__m512i)_mm512_cvtne2ps_pbh(high, low));
  } else if (dtype == core::DType::f16) {
    _mm256_mask_storeu_epi16(out, low_dims, _mm512_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm256_mask_storeu_epi16(out + 32, high_dims, _mm512_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  } else {
    _mm512_mask_storeu_ps(out, low_dims, low);
    _mm512_mask_storeu_ps(out + 64, high_dims, high);
  }
}

// Stores rows of O to their addresses: lane r of O^T times factor[r], or 0 if bit r of `live` is 0, even if O^T holds
// NaN.
inline void store_o(const float* tiles, const float* factor, uint32_t live, int64_t head_dim, int num_rows,
                    core::DType dtype, std::byte* const* rows) {
  for (int64_t dim = 0; dim < head_dim; dim += kStepDims, tiles += 4 * kTileFloats) {
    const __mmask32 dims = lanes32(head_dim - dim);
    for (int half = 0; half < 2 && 16 * half < num_rows; ++half) {
      const __mmask16 lanes = static_cast<__mmask16>(live >> (16 * half));
      const __m512 scale = _mm512_load_ps(factor + 16 * half);
      __m512i low[16], high[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        const float* tile = tiles + half * kTileFloats + i * 16;
        low[i] = _mm512_castps_si512(_mm512_maskz_mul_ps(lanes, _mm512_load_ps(tile), scale));
        high[i] = _mm512_castps_si512(_mm512_maskz_mul_ps(lanes, _mm512_load_ps(tile + 2 * kTileFloats), scale));
      }
      transpose16(low);
      transpose16(high);
      const int count = std::min(16, num_rows - 16 * half);
      for (int i = 0; i < count; ++i) {
        store_row(rows[16 * half + i] + dim * core::size_bytes(dtype), dtype, dims, _mm512_castsi512_ps(low[i]),
                  _mm512_castsi512_ps(high[i]));
      }
    }
  }
}

}  // namespace tessella::cpu::amx
