// A tile of scores [key][row] between the two products, besides softmax: the score chain (scale, softcap, bias, ALiBi,
// masks), the band, and dropout. Every lane is one row.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "cpu/exp2.hpp"
#include "cpu/query_tile.hpp"
#include "cpu/vector/convert-inl.hpp"
#include "cpu/vector/element_masks-inl.hpp"
#include "cpu/vector/exp2-inl.hpp"
#include "hwy/highway.h"
#include "operations/attention/arguments.hpp"
#include "portable/dropout.hpp"

HWY_BEFORE_NAMESPACE();
namespace tessella::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename Real>
inline constexpr Real kMinusInfinity = -std::numeric_limits<Real>::infinity();
inline constexpr int kChainKeys = 64;  // keys that the score chain treats at a time

// (tanh(x) - x) / x^3 as a function of x^2, |x| < 0.625, of Cephes: tanhf and tanh.
HWY_INLINE Vec<float> tanh_near_zero(Vec<float> square) {
  static constexpr float kNumerator[] = {-3.33332819422e-1f, 1.33314422036e-1f, -5.37397155531e-2f, 2.06390887954e-2f,
                                         -5.70498872745e-3f};
  return polynomial(square, kNumerator);
}
HWY_INLINE Vec<double> tanh_near_zero(Vec<double> square) {
  static constexpr double kNumerator[] = {-1.61468768441708447952e3, -9.92877231001918586564e1,
                                          -9.64399179425052238628e-1};
  static constexpr double kDenominator[] = {4.84406305325125486048e3, 2.23548839060100448583e3,
                                            1.12811678491632931402e2, 1.0};
  return hn::Div(polynomial(square, kNumerator), polynomial(square, kDenominator));
}

// A series near 0, 1 - 2 / (e^(2|x|) + 1) beyond; error about 1 ulp.
template <class V>
HWY_INLINE V tanh(V x) {
  using Real = hn::TFromV<V>;
  const hn::DFromV<V> d;
  const V one = hn::Set(d, 1);
  const V magnitude = hn::Abs(x);
  const V square = hn::Mul(x, x);
  const V near = hn::MulAdd(hn::Mul(tanh_near_zero(square), square), magnitude, magnitude);

  const V saturated = hn::Set(d, std::is_same_v<Real, double> ? 20 : 10);  // tanh rounds to 1 from 19.07 or 9.02
  const V clamped = hn::IfThenElse(hn::Gt(magnitude, saturated), saturated, magnitude);
  const V power = exp2(hn::Mul(clamped, hn::Set(d, 2 * kLog2E<Real>)));
  const V far = hn::Sub(one, hn::Div(hn::Set(d, 2), hn::Add(power, one)));
  return hn::CopySignToAbs(hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, Real{0.625})), near, far), x);
}

// Integers of 32 bits in lanes as wide as Real.
template <typename Real, typename Int>
HWY_INLINE auto load_ints(const Int* from) {
  const hn::Rebind<Int, Tag<Real>> d;
  if constexpr (std::is_same_v<Real, double>) {
    return hn::PromoteTo(hn::Rebind<hwy::MakeWide<Int>, Tag<Real>>(), hn::Load(d, from));
  } else {
    return hn::Load(d, from);
  }
}

// -inf where the band hides the key.
template <typename Real>
void apply_band(const QueryTile& query_tile, int lanes, Real* scores, int64_t key_begin, int num_keys) {
  const Tag<Real> d;
  const IntTag<Real> di;
  const Vec<Real> hidden = hn::Set(d, kMinusInfinity<Real>);
  for (int row = 0; row < lanes; row += kLanes<Real>) {
    const IntVec<Real> begin = load_ints<Real>(query_tile.begin + row);
    const IntVec<Real> end = load_ints<Real>(query_tile.end + row);
    for (int key = 0; key < num_keys; ++key) {
      const auto j = static_cast<int32_t>(key_begin + key);
      const IntVec<Real> first = j < query_tile.keep_end ? hn::Zero(di) : begin;
      Real* score = scores + key * lanes + row;
      const IntVec<Real> at = hn::Set(di, j);
      const Mask<Real> before = hn::RebindMask(d, hn::Lt(at, first));
      const Mask<Real> inside = hn::RebindMask(d, hn::Lt(at, end));
      const Vec<Real> value = hn::IfThenElse(inside, hn::Load(d, score), hidden);
      hn::Store(hn::IfThenElse(before, hidden, value), d, score);
    }
  }
}

// bias[key][row] of up to kChainKeys keys.
template <typename Real>
void load_bias(const QueryTile& query_tile, int lanes, int64_t key_begin, int num_keys, Real* bias) {
  const core::ScoreOperand& from = query_tile.arguments->bias;
  with_elements<Real>(from.dtype, [&]<typename T>(const T*) HWY_ATTR {
    const T* rows[kMaxQueryTileRows] = {};
    for (int r = 0; r < lanes; ++r) {
      rows[r] = reinterpret_cast<const T*>(from.data) + from.index(query_tile.sequence->batch_idx, query_tile.head[r],
                                                                   query_tile.query[r],
                                                                   query_tile.sequence->slot_kv + key_begin);
    }
    load_transposed(rows, lanes, num_keys, from.kv_stride, bias);
  });
}

// NaN loses its low half, so that rounding it to bf16 by adding cannot carry out of it.
HWY_INLINE Vec<float> shorten_nan(Vec<float> value) {
  const Tag<float> d;
  const hn::RebindToUnsigned<Tag<float>> du;
  return hn::IfThenElse(hn::IsNaN(value), hn::And(value, hn::BitCast(d, hn::Set(du, 0xFFFF0000u))), value);
}
HWY_INLINE Vec<double> shorten_nan(Vec<double> value) { return value; }

// The factor on products q.k: the scale, or with softcap the scale of tanh's argument.
template <typename Real>
Real product_scale(const core::AttentionArguments& p) {
  return p.features.has(core::Feature::softcap) ? static_cast<Real>(p.scale) / Real{p.softcap}
                                                : static_cast<Real>(p.scale);
}

// scale, softcap, bias, ALiBi on up to kChainKeys keys.
template <typename Real>
void apply_values(const QueryTile& query_tile, int lanes, Real* scores, int64_t key_begin, int num_keys) {
  const core::AttentionArguments& p = *query_tile.arguments;
  const core::Sequence& s = *query_tile.sequence;
  const bool has_bias = p.features.has(core::Feature::bias);
  const bool has_alibi = p.features.has(core::Feature::alibi);
  const bool has_softcap = p.features.has(core::Feature::softcap);
  alignas(64) Real bias[kChainKeys * kMaxQueryTileRows];
  alignas(64) Real slope[kMaxQueryTileRows] = {};
  alignas(64) Real position[kMaxQueryTileRows];
  if (has_bias) load_bias(query_tile, lanes, key_begin, num_keys, bias);
  for (int r = 0; r < lanes; ++r) {
    if (has_alibi) slope[r] = p.alibi_slopes.at(s.batch_idx, query_tile.head[r]);
    position[r] = static_cast<Real>(s.band.position(query_tile.query[r]) - key_begin);
  }
  const Tag<Real> d;
  const Vec<Real> scale = hn::Set(d, product_scale<Real>(p));
  const Vec<Real> cap = hn::Set(d, p.softcap);
  for (int key = 0; key < num_keys; ++key) {
    const Vec<Real> at = hn::Set(d, static_cast<Real>(key));
    for (int row = 0; row < lanes; row += kLanes<Real>) {
      Real* score = scores + key * lanes + row;
      Vec<Real> value = hn::Mul(hn::Load(d, score), scale);
      if (has_softcap) value = hn::Mul(tanh(value), cap);
      if (has_bias) value = hn::Add(value, hn::Load(d, bias + key * lanes + row));
      if (has_alibi) {
        const Vec<Real> distance = hn::Abs(hn::Sub(hn::Load(d, position + row), at));
        value = hn::NegMulAdd(hn::Load(d, slope + row), distance, value);
      }
      hn::Store(shorten_nan(value), d, score);
    }
  }
}

template <typename Real>
void score_chain(const QueryTile& query_tile, int lanes, Real* scores, int64_t key_begin, int num_keys,
                 bool applies_element_masks) {
  for (int key = 0; !scores_are_products(*query_tile.arguments) && key < num_keys; key += kChainKeys) {
    const int count = num_keys - key < kChainKeys ? num_keys - key : kChainKeys;
    apply_values(query_tile, lanes, scores + key * lanes, key_begin + key, count);
  }
  if (key_begin < query_tile.full_begin || key_begin + num_keys > query_tile.full_end) {
    apply_band(query_tile, lanes, scores, key_begin, num_keys);
  }
  for (int key = 0; applies_element_masks && key < num_keys; key += kChainKeys) {
    const int count = num_keys - key < kChainKeys ? num_keys - key : kChainKeys;
    apply_element_masks(query_tile, lanes, scores + key * lanes, key_begin + key, count);
  }
}

// Random words of keys {2c, 2c+1} (low) and {2c+8, 2c+9} (high) of one 16-key block for up to kMaxQueryTileRows rows,
// each from its own (query, head). Plain loops: the compiler turns the 32 x 32 bit products into vectors.
struct DropoutRows {
  alignas(64) uint32_t head[kMaxQueryTileRows];
  alignas(64) uint32_t block[kMaxQueryTileRows];
  alignas(64) uint32_t row[kMaxQueryTileRows];  // in the 16-row block
};

inline void random_words(const portable::Dropout& dropout, const DropoutRows& rows, int lanes, uint32_t block_kv,
                         uint32_t c, uint32_t* HWY_RESTRICT low, uint32_t* HWY_RESTRICT high) {
  const uint32_t key0 = dropout.key0(), key1 = dropout.key1(), counter3 = dropout.counter3();
  for (int r = 0; r < lanes; ++r) {
    const portable::Random4 random = portable::philox4x32_7(
        {{block_kv * 32 + (rows.row[r] & 7) * 4 + c, rows.block[r], rows.head[r], counter3}}, key0, key1);
    low[r] = rows.row[r] < 8 ? random.word[0] : random.word[1];
    high[r] = rows.row[r] < 8 ? random.word[2] : random.word[3];
  }
}

template <typename Real>
void dropout_chain(const QueryTile& query_tile, int lanes, Real* probs, int64_t key_begin, int num_keys) {
  const core::AttentionArguments& p = *query_tile.arguments;
  const portable::Dropout dropout = dropout_of(p);
  DropoutRows rows;
  for (int r = 0; r < lanes; ++r) {
    rows.head[r] = static_cast<uint32_t>(query_tile.sequence->batch_idx * p.heads_q + query_tile.head[r]);
    rows.block[r] = static_cast<uint32_t>(query_tile.query[r] >> 4);
    rows.row[r] = static_cast<uint32_t>(query_tile.query[r] & 15);
  }
  const Tag<Real> d;
  const IntTag<Real> di;
  const hn::RebindToUnsigned<Tag<Real>> du;
  const auto threshold = hn::Set(du, dropout.threshold);
  const auto low_half = hn::Set(du, 0xFFFFu);
  alignas(64) uint32_t words[2][kMaxQueryTileRows];
  const int64_t key_end = key_begin + num_keys;
  for (int64_t block = key_begin >> 4; block << 4 < key_end; ++block) {
    for (int c = 0; c < 4; ++c) {
      random_words(dropout, rows, lanes, static_cast<uint32_t>(block), static_cast<uint32_t>(c), words[0], words[1]);
      for (int quarter = 0; quarter < 4; ++quarter) {  // keys 2c, 2c + 1, 2c + 8, 2c + 9
        const int64_t key = (block << 4) + 2 * c + (quarter & 1) + (quarter >> 1) * 8;
        if (key < key_begin || key >= key_end) continue;
        for (int row = 0; row < lanes; row += kLanes<Real>) {
          const auto word = load_ints<Real>(words[quarter >> 1] + row);
          const auto bits = quarter & 1 ? hn::ShiftRight<16>(word) : hn::And(word, low_half);
          const Mask<Real> dropped = hn::RebindMask(d, hn::Lt(hn::BitCast(di, bits), hn::BitCast(di, threshold)));
          Real* prob = probs + (key - key_begin) * lanes + row;
          hn::Store(hn::IfThenZeroElse(dropped, hn::Load(d, prob)), d, prob);
        }
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessella::cpu
HWY_AFTER_NAMESPACE();
