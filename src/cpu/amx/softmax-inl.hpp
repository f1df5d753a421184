// Online softmax of one 32-query tile over blocks of 32 keys, scores stored [key][query row].
//
// Lanes are query rows, so nothing crosses lanes. Probabilities are exp2(s - m) against a lazy maximum m: the true
// maximum of the first block that shows the row a key (a row with one key is exact), then raised only when a block's
// sum shows that a score may have passed m + 8, and then by a whole number, so that everything accumulated so far is
// rescaled by an exact power of two. P is rounded to bf16 half up: it differs from half-to-even only on ties, one in
// 2^16, and costs 4 instructions for 32 values, in the order the tiles want.
// Include inside a target region only (target-inl.hpp).
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "cpu/amx/tiles-inl.hpp"
#include "cpu/exp2.hpp"
#include "cpu/query_tile.hpp"

namespace tessella::cpu::amx {

inline constexpr int kRows = 32;
inline constexpr int kBlockKeys = 32;
inline constexpr int kBlockFloats = kBlockKeys * kRows;
inline constexpr int kKeyPairs = kBlockKeys / 2;
inline constexpr int kPieces = 2 * kKeyPairs;  // of a block's softmax

// A score may pass the maximum by 2^kLazyBits in probability before the maximum must rise; a block's sum above
// kSumLimit proves that one did, and one at or below it that none passed by more than 13 bits: far from overflow.
inline constexpr float kLazyBits = 8;
inline constexpr float kSumLimit = (kBlockKeys + 1) * 256.0f;

struct alignas(64) SoftmaxState {
  float offset[kRows];    // -m in log2 units; 0 while the row has seen no key, or of the origin's excess
  float origin[kRows];    // what scores are taken less before they are scaled: 0, or a maximum too large to be scaled
  float sum[2][kRows];    // of probabilities as rounded to bf16, even and odd keys apart
  float exact[2][kRows];  // of probabilities before rounding; only for LSE
  uint32_t unset;         // bit per row that has no maximum yet: it has seen no key, or NaN only

  // Rows that have seen no key; what a row without a maximum has seen shows in its sum, which is 0 or NaN.
  uint32_t unseen() const {
    uint32_t rows = unset;
    for (int r = 0; r < kRows; ++r) {
      if (std::isnan(sum[0][r] + sum[1][r])) rows &= ~(uint32_t{1} << r);
    }
    return rows;
  }

  void reset() {
    std::memset(this, 0, sizeof *this);
    unset = ~uint32_t{0};
  }
};

// 2^x, relative error 2e-7 (2^0 is exact). -inf gives 0.
[[gnu::always_inline]] inline __m512 exp2_lanes(__m512 x) {
  const __m512 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  __m512 p = _mm512_fmadd_ps(f, _mm512_set1_ps(kExp2[5]), _mm512_set1_ps(kExp2[4]));
  p = _mm512_fmadd_ps(f, p, _mm512_set1_ps(kExp2[3]));
  p = _mm512_fmadd_ps(f, p, _mm512_set1_ps(kExp2[2]));
  p = _mm512_fmadd_ps(f, p, _mm512_set1_ps(kExp2[1]));
  p = _mm512_fmadd_ps(f, p, _mm512_set1_ps(kExp2[0]));
  return _mm512_scalef_ps(p, x);
}

// Rounds to a bf16 value, half up. NaN stays NaN: products of bf16 tiles and the score chain leave its low half 0.
[[gnu::always_inline]] inline __m512 round_to_bf16(__m512 value) {
  const __m512i sum = _mm512_add_epi32(_mm512_castps_si512(value), _mm512_set1_epi32(0x8000));
  return _mm512_castsi512_ps(_mm512_and_si512(sum, _mm512_set1_epi32(static_cast<int>(0xFFFF0000))));
}

// Two keys' bf16 values, lane by lane in one dword: `even` in the low half.
[[gnu::always_inline]] inline __m512i join_pair(__m512 even, __m512 odd) {
  return _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(even), 16), _mm512_castps_si512(odd));
}

// kExact: also sum unrounded probabilities. Out is divided by the sum of rounded ones, whose errors then cancel in rows
// that one key dominates; LSE needs the others.
//
// Probabilities of a block, a few key pairs at a time so that the caller can put tile steps between.
template <bool kExact>
class SoftmaxRows {
 public:
  [[gnu::always_inline]] SoftmaxRows(const SoftmaxState& state, const float* scores, uint16_t* probs, float scale_log2)
      : scores_(scores), probs_(probs), scale_(_mm512_set1_ps(scale_log2)) {
    offset0_ = _mm512_load_ps(state.offset);
    offset1_ = _mm512_load_ps(state.offset + 16);
    low_ = high_ = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
  }

  // Probabilities of pieces [begin, end) of kPieces: a key pair of 16 rows each. A pair is 16 rows of one B tile.
  [[gnu::always_inline]] void run(int begin, int end) {
#pragma GCC unroll 8
    for (int piece = begin; piece < end; ++piece) {
      const float* s = scores_ + piece / 2 * 2 * kRows;
      uint16_t* probs = probs_ + piece / 2 * 32;
      if (piece % 2 == 0) {
        run_piece(s, offset0_, low_, probs);
      } else {
        run_piece(s + 16, offset1_, high_, probs + kTileElements);
      }
    }
  }

  // A bit for each row whose maximum was too low.
  [[gnu::always_inline]] uint32_t too_low() const {
    const __m512 limit = _mm512_set1_ps(kSumLimit);
    const __mmask16 low = _mm512_cmp_ps_mask(_mm512_add_ps(low_.even, low_.odd), limit, _CMP_GT_OQ);
    const __mmask16 high = _mm512_cmp_ps_mask(_mm512_add_ps(high_.even, high_.odd), limit, _CMP_GT_OQ);
    return low | uint32_t{high} << 16;
  }

  // Computes one half of the block again, with the rows' current maxima.
  [[gnu::always_inline]] void repeat(const SoftmaxState& state, int half) {
    const __m512 offset = _mm512_load_ps(state.offset + 16 * half);
    Sums sums = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
    for (int pair = 0; pair < kKeyPairs; ++pair) {
      run_piece(scores_ + pair * 2 * kRows + 16 * half, offset, sums, probs_ + pair * 32 + half * kTileElements);
    }
    (half == 0 ? low_ : high_) = sums;
  }

  // Adds the block's sums to those of the rows.
  [[gnu::always_inline]] void finish(SoftmaxState& state) const {
    add(state.sum, low_.even, low_.odd, 0);
    add(state.sum, high_.even, high_.odd, 16);
    if (kExact) {
      add(state.exact, low_.exact_even, low_.exact_odd, 0);
      add(state.exact, high_.exact_even, high_.exact_odd, 16);
    }
  }

 private:
  struct Sums {
    __m512 even, odd, exact_even, exact_odd;
  };

  // Two keys of 16 rows.
  [[gnu::always_inline]] void run_piece(const float* s, __m512 offset, Sums& sums, uint16_t* probs) const {
    const __m512 even = exp2_lanes(_mm512_fmadd_ps(_mm512_load_ps(s), scale_, offset));
    const __m512 odd = exp2_lanes(_mm512_fmadd_ps(_mm512_load_ps(s + kRows), scale_, offset));
    if (kExact) {
      sums.exact_even = _mm512_add_ps(sums.exact_even, even);
      sums.exact_odd = _mm512_add_ps(sums.exact_odd, odd);
    }
    const __m512 rounded_even = round_to_bf16(even);
    const __m512 rounded_odd = round_to_bf16(odd);
    sums.even = _mm512_add_ps(sums.even, rounded_even);
    sums.odd = _mm512_add_ps(sums.odd, rounded_odd);
    _mm512_store_si512(probs, join_pair(rounded_even, rounded_odd));
  }

  [[gnu::always_inline]] static void add(float (*sum)[kRows], __m512 even, __m512 odd, int row) {
    _mm512_store_ps(sum[0] + row, _mm512_add_ps(_mm512_load_ps(sum[0] + row), even));
    _mm512_store_ps(sum[1] + row, _mm512_add_ps(_mm512_load_ps(sum[1] + row), odd));
  }

  const float* scores_;
  uint16_t* probs_;
  __m512 scale_;
  __m512 offset0_, offset1_;
  Sums low_, high_;  // rows 0-15 and 16-31
};

// -inf where the band hides a key of [key_begin, key_begin + 32).
[[gnu::noinline]] inline void hide_outside_band(const QueryTile& query_tile, float* scores, int64_t key_begin) {
  const __m512 hidden = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  const __m512i keep = _mm512_set1_epi32(query_tile.keep_end);
  for (int half = 0; half < 2; ++half) {
    const __m512i begin = _mm512_load_si512(query_tile.begin + 16 * half);
    const __m512i end = _mm512_load_si512(query_tile.end + 16 * half);
    for (int i = 0; i < kBlockKeys; ++i) {
      const __m512i key = _mm512_set1_epi32(static_cast<int>(key_begin) + i);
      const __mmask16 seen = _mm512_cmplt_epi32_mask(key, end) &
                             (_mm512_cmpge_epi32_mask(key, begin) | _mm512_cmplt_epi32_mask(key, keep));
      float* s = scores + i * kRows + 16 * half;
      _mm512_store_ps(s, _mm512_mask_mov_ps(hidden, seen, _mm512_load_ps(s)));
    }
  }
}

// Largest score of each row of one half (16 rows) of a block; any of them, or NaN, where a row has NaN.
inline __m512 block_maximum(const float* scores) {
  constexpr int kChains = 4;
  __m512 largest[kChains];
  for (int i = 0; i < kChains; ++i) largest[i] = _mm512_load_ps(scores + i * kRows);
#pragma GCC unroll 8
  for (int i = kChains; i < kBlockKeys; ++i) {
    largest[i % kChains] = _mm512_max_ps(largest[i % kChains], _mm512_load_ps(scores + i * kRows));
  }
  return _mm512_max_ps(_mm512_max_ps(largest[0], largest[1]), _mm512_max_ps(largest[2], largest[3]));
}

inline constexpr float kLargestOffset = 0x1p24f;  // of rows that may have an origin

// Gives `rows` of one half a score as their maximum. has_origins: subtract_origins() follows.
inline void set_maximum(SoftmaxState& state, int half, __mmask16 rows, __m512 maximum, float scale_log2,
                        bool has_origins) {
  const __m512 scaled = _mm512_mul_ps(maximum, _mm512_set1_ps(scale_log2));
  __mmask16 is_large = _mm512_cmp_ps_mask(_mm512_abs_ps(scaled), _mm512_set1_ps(kLargestOffset), _CMP_NLT_UQ);
  if (!has_origins) is_large = 0;
  const __m512 offset = _mm512_maskz_sub_ps(_knot_mask16(is_large), _mm512_setzero_ps(), scaled);
  _mm512_mask_store_ps(state.offset + 16 * half, rows, offset);
  _mm512_mask_store_ps(state.origin + 16 * half, rows, _mm512_maskz_mov_ps(is_large, maximum));
}

// Gives rows that see their first key in this block the block's maximum.
[[gnu::noinline]] inline void set_first_maximum(SoftmaxState& state, const float* scores, float scale_log2,
                                                bool has_origins) {
  for (int half = 0; half < 2; ++half) {
    const __m512 maximum = block_maximum(scores + 16 * half);
    const __m512 lowest = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
    const __m512 tested = has_origins ? maximum : _mm512_mul_ps(maximum, _mm512_set1_ps(scale_log2));
    const __mmask16 set =
        static_cast<__mmask16>(state.unset >> (16 * half)) & _mm512_cmp_ps_mask(tested, lowest, _CMP_NEQ_UQ);
    set_maximum(state, half, set, maximum, scale_log2, has_origins);
    state.unset &= ~(static_cast<uint32_t>(set) << (16 * half));
  }
}

// Raises the maximum of each of `rows` (a bit for each) whose block maximum exceeds it by more than kLazyBits. Other
// rows do not change, so a row's result does not depend on its neighbours. factor[32] gets the powers of two that the
// accumulated rows must be multiplied by. The origins of these rows are not yet subtracted from the scores. Returns a
// bit for each half in which a row changed.
[[gnu::noinline]] inline uint32_t raise_maximum(SoftmaxState& state, const float* scores, float scale_log2,
                                                uint32_t rows, bool has_origins, float* factor) {
  uint32_t raised = 0;
  for (int half = 0; half < 2; ++half) {
    const auto of_half = static_cast<__mmask16>(rows >> (16 * half));
    if (of_half == 0) continue;
    float* offset = state.offset + 16 * half;
    const __m512 maximum = block_maximum(scores + 16 * half);
    const __m512 beyond = _mm512_sub_ps(maximum, _mm512_load_ps(state.origin + 16 * half));
    const __m512 excess = _mm512_add_ps(_mm512_mul_ps(beyond, _mm512_set1_ps(scale_log2)), _mm512_load_ps(offset));
    const __mmask16 over = _mm512_mask_cmp_ps_mask(of_half, excess, _mm512_set1_ps(kLazyBits), _CMP_GT_OQ);
    if (over == 0) continue;
    raised |= uint32_t{1} << half;
    const __m512 steps = _mm512_maskz_roundscale_ps(over, excess, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
    const __m512 power = _mm512_scalef_ps(_mm512_set1_ps(1.0f), _mm512_sub_ps(_mm512_setzero_ps(), steps));
    _mm512_store_ps(factor + 16 * half, power);
    // Nothing accumulated survives 1024 steps, and fp32 might not hold their number to the last one.
    const __mmask16 far = _mm512_cmp_ps_mask(steps, _mm512_set1_ps(1024.0f), _CMP_GT_OQ);
    _mm512_store_ps(offset, _mm512_sub_ps(_mm512_load_ps(offset), steps));
    set_maximum(state, half, far, maximum, scale_log2, has_origins);
    for (float* sum : {state.sum[0], state.sum[1], state.exact[0], state.exact[1]}) {
      _mm512_store_ps(sum + 16 * half, _mm512_mul_ps(_mm512_load_ps(sum + 16 * half), power));
    }
  }
  return raised;
}

// Takes scores less the origins of their rows.
inline void subtract_origins(const SoftmaxState& state, float* scores) {
  for (int half = 0; half < 2; ++half) {
    const __m512 origin = _mm512_load_ps(state.origin + 16 * half);
    if (_mm512_cmp_ps_mask(origin, _mm512_setzero_ps(), _CMP_NEQ_UQ) == 0) continue;
    for (int i = 0; i < kBlockKeys; ++i) {
      float* s = scores + i * kRows + 16 * half;
      _mm512_store_ps(s, _mm512_sub_ps(_mm512_load_ps(s), origin));
    }
  }
}

// C or fp32 rows [..][16 lanes] times a factor a lane.
inline void rescale_floats(float* tile, __m512 factor) {
  for (int i = 0; i < kTileRows; ++i) {
    _mm512_store_ps(tile + i * 16, _mm512_mul_ps(_mm512_load_ps(tile + i * 16), factor));
  }
}

// Multiplies a tile of P by a power of two for each lane, at most 1, by subtracting from the exponents. Products of
// tiles treat values below 2^-126 as 0. A row with NaN also has it in its sum.
inline void rescale_probs(uint16_t* tile, __m512 factor) {
  const __m512i exponent = _mm512_srli_epi32(_mm512_castps_si512(factor), 23);
  const __mmask16 is_zero = _mm512_testn_epi32_mask(exponent, exponent);
  const __m512i steps =
      _mm512_mask_mov_epi32(_mm512_sub_epi32(_mm512_set1_epi32(127), exponent), is_zero, _mm512_set1_epi32(256));
  const __m512i pair = _mm512_or_si512(_mm512_slli_epi32(steps, 7), _mm512_slli_epi32(steps, 23));
  for (int i = 0; i < kTileRows; ++i) {
    _mm512_store_si512(tile + i * 32, _mm512_subs_epu16(_mm512_load_si512(tile + i * 32), pair));
  }
}

// exp2 of the whole block in place, in fp32, added to the sums: for dropout, which acts on probabilities.
inline void exponentiate_block(SoftmaxState& state, float* scores, float scale_log2) {
  const __m512 scale = _mm512_set1_ps(scale_log2);
  for (int half = 0; half < 2; ++half) {
    const __m512 offset = _mm512_load_ps(state.offset + 16 * half);
    for (int i = 0; i < kBlockKeys; ++i) {
      float* s = scores + i * kRows + 16 * half;
      const __m512 p = exp2_lanes(_mm512_fmadd_ps(_mm512_load_ps(s), scale, offset));
      _mm512_store_ps(s, p);
      for (float* sum : {state.sum[i % 2] + 16 * half, state.exact[i % 2] + 16 * half}) {
        _mm512_store_ps(sum, _mm512_add_ps(_mm512_load_ps(sum), p));
      }
    }
  }
}

inline void round_block(const float* values, uint16_t* probs) {
  for (int i = 0; i < kKeyPairs; ++i) {
    for (int half = 0; half < 2; ++half) {
      const float* v = values + 2 * i * kRows + 16 * half;
      _mm512_store_si512(probs + half * kTileElements + i * 32,
                         join_pair(round_to_bf16(_mm512_load_ps(v)), round_to_bf16(_mm512_load_ps(v + kRows))));
    }
  }
}

}  // namespace tessella::cpu::amx
