// Columns of cached rows in blocks of two vectors, read as they lie in memory.
//
// Where a type is narrower than a lane, the two vectors of a block may be its even and its odd columns: no shuffle is
// needed. The last block of a row ends with the row, so it may begin inside the block before it; a row shorter than a
// block is padded with zeros. Nothing is read past a row.
//
// Elements of 8 and 4 bits are read without their scales.
#pragma once

#include <cstring>
#include <type_traits>

#include "cpu/vector/convert-inl.hpp"
#include "cpu/vector/exp2-inl.hpp"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tessella::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename Real>
inline constexpr int kBlock = 2 * kLanes<Real>;  // columns

using portable::Float8E4M3;
// Two elements of 4 bits: portable/int4.hpp. Rows have whole bytes.
struct Int4Pair {
  uint8_t bits;
};

// Like with_elements(), also for the quantized dtypes of K and V.
template <typename Real, typename Fn>
auto with_cached_elements(core::DType dtype, Fn&& fn) {
  if constexpr (std::is_same_v<Real, float>) {
    if (dtype == core::DType::f8e4m3fn) return fn(static_cast<const Float8E4M3*>(nullptr));
    if (dtype == core::DType::i8) return fn(static_cast<const int8_t*>(nullptr));
    if (dtype == core::DType::i4) return fn(static_cast<const Int4Pair*>(nullptr));
  }
  return with_elements<Real>(dtype, fn);
}

// An element that load_pair reads in its own unit, by one more product: kUnit.
struct WholeFloat8 {
  uint8_t bits;
};

template <typename T>
inline constexpr bool kIsInteger = std::is_same_v<T, int8_t> || std::is_same_v<T, Int4Pair>;
template <typename T>
inline constexpr bool kIsScaled = kIsInteger<T> || std::is_same_v<T, Float8E4M3>;
template <typename T>
inline constexpr int kOfElement = std::is_same_v<T, Int4Pair> ? 2 : 1;  // columns

// Whether the vectors of a block are its even and odd columns; else its first and second half.
template <typename T>
inline constexpr bool kInterleaved = std::is_same_v<T, Int4Pair> ||
                                     (HWY_TARGET != HWY_SCALAR && std::is_same_v<T, BFloat16>) ||
                                     (TESSELLA_NATIVE_F16 &&
                                      (std::is_same_v<T, Float8E4M3> || std::is_same_v<T, WholeFloat8>));

// The unit of loaded values: an element is this many times the value that load_pair() returns.
template <typename T>
inline constexpr float kUnit = TESSELLA_NATIVE_F16&& std::is_same_v<T, Float8E4M3> ? 256 : 1;

// Calls fn as with_elements does, with T or with that which is read whole.
template <typename T, typename Fn>
HWY_INLINE void with_whole(bool is_whole, Fn&& fn) {
  if constexpr (kUnit<T> != 1) {
    if (is_whole) return fn(static_cast<const WholeFloat8*>(nullptr));
  }
  fn(static_cast<const T*>(nullptr));
}

template <class D>
HWY_INLINE hn::Vec<D> load_floats(D d, const int8_t* from) {
  const hn::RebindToSigned<D> di;
  return hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(hn::Rebind<int8_t, D>(), from)));
}

template <class D>
HWY_INLINE hn::Vec<D> load_floats(D d, const Float8E4M3* from) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::PromoteTo(du, hn::LoadU(hn::Rebind<uint8_t, D>(), reinterpret_cast<const uint8_t*>(from)));
  const auto sign = hn::ShiftLeft<24>(hn::And(bits, hn::Set(du, 0x80u)));
  const auto magnitude = hn::ShiftLeft<20>(hn::And(bits, hn::Set(du, 0x7Fu)));
  // As in load_floats() of Float16.
  const auto finite = hn::BitCast(d, hn::Add(magnitude, hn::Set(du, 120u << 23)));
  const auto subnormal = hn::Sub(hn::BitCast(d, hn::Add(magnitude, hn::Set(du, 121u << 23))), hn::Set(d, 0x1p-6f));
  const auto special = hn::BitCast(d, hn::Set(du, 0x7FC00000u));
  const auto value = hn::IfThenElse(hn::Lt(finite, hn::Set(d, 0x1p-6f)), subnormal, finite);
  const auto is_special = hn::Ge(finite, hn::Set(d, 480.0f));
  return hn::Or(hn::IfThenElse(is_special, special, value), hn::BitCast(d, sign));
}

template <typename Real>
struct Pair {
  Vec<Real> first, second;
};

// Columns [column, column + kBlock) of a row.
template <typename Real, typename T>
HWY_INLINE Pair<Real> load_pair(const T* row, int column) {
  const Tag<Real> d;
#if HWY_TARGET != HWY_SCALAR
  if constexpr (std::is_same_v<T, BFloat16>) {
    const hn::RebindToUnsigned<Tag<Real>> du;
    const hn::Repartition<uint16_t, Tag<Real>> du16;
    const auto bits = hn::BitCast(du, hn::LoadU(du16, reinterpret_cast<const uint16_t*>(row + column)));
    return {hn::BitCast(d, hn::ShiftLeft<16>(bits)), hn::BitCast(d, hn::And(bits, hn::Set(du, 0xFFFF0000u)))};
  }
#endif
#if TESSELLA_NATIVE_F16
  if constexpr (std::is_same_v<T, Float8E4M3>) {
    // The sign, four bits of an exponent and three of a fraction are those of a half, but for the exponent's bias.
    const hn::Rebind<uint16_t, Tag<Real>> du;
    const hn::RebindToSigned<decltype(du)> di;
    const hn::Rebind<hwy::float16_t, Tag<Real>> dh;
    const hn::Repartition<uint8_t, decltype(du)> d8;
    const auto bytes = hn::BitCast(du, hn::LoadU(d8, reinterpret_cast<const uint8_t*>(row + column)));
    const auto half = [&](auto high) HWY_ATTR {  // of the byte in the upper half
      const auto bits = hn::BitCast(du, hn::ShiftRight<1>(hn::BitCast(di, high)));
      const auto is_nan = hn::Eq(hn::And(bits, hn::Set(du, 0x3F80u)), hn::Set(du, 0x3F80u));
      const auto value = hn::Or(hn::And(bits, hn::Set(du, 0xBF80u)), hn::VecFromMask(du, is_nan));
      return hn::PromoteTo(d, hn::BitCast(dh, value));
    };
    return {half(hn::ShiftLeft<8>(bytes)), half(bytes)};
  }
#endif
  if constexpr (std::is_same_v<T, Int4Pair>) {
    const hn::RebindToSigned<Tag<Real>> di;
    const hn::RebindToUnsigned<Tag<Real>> du;
    const hn::Rebind<uint8_t, Tag<Real>> d8;
    const auto* bytes = reinterpret_cast<const uint8_t*>(row + column / 2);
    const auto bits = hn::BitCast(di, hn::PromoteTo(du, hn::LoadU(d8, bytes)));
    return {hn::ConvertTo(d, hn::ShiftRight<28>(hn::ShiftLeft<28>(bits))),
            hn::ConvertTo(d, hn::ShiftRight<28>(hn::ShiftLeft<24>(bits)))};
  } else if constexpr (std::is_same_v<T, WholeFloat8>) {
    const Pair<Real> pair = load_pair<Real>(reinterpret_cast<const Float8E4M3*>(row), column);
    const Vec<Real> unit = hn::Set(d, kUnit<Float8E4M3>);
    return {hn::Mul(pair.first, unit), hn::Mul(pair.second, unit)};
  } else {
    return {load_floats(d, row + column), load_floats(d, row + column + kLanes<Real>)};
  }
}

// How a row of `dim` columns is divided into blocks.
template <typename Real, typename T>
struct Blocks {
  int dim = 0;

  int full() const { return dim / kBlock<Real>; }
  int count() const { return (dim + kBlock<Real> - 1) / kBlock<Real>; }
  int padded() const { return count() * kBlock<Real>; }
  bool is_short() const { return dim < kBlock<Real>; }
  int begin(int block) const { return block < full() || is_short() ? block * kBlock<Real> : dim - kBlock<Real>; }
  // The column that a block has in a lane, counted over both of its vectors.
  int column(int block, int lane) const {
    const int at = kInterleaved<T> ? 2 * (lane % kLanes<Real>)+lane / kLanes<Real> : lane;
    return begin(block) + at;
  }
};

// A row that is shorter than a block.
template <typename Real, typename T>
HWY_INLINE Pair<Real> load_short(const T* row, int dim) {
  T padded[kBlock<Real>] = {};
  for (int i = 0; i < dim / kOfElement<T>; ++i) padded[i] = row[i];
  return load_pair<Real>(padded, 0);
}

// Loads the columns of the last block that no earlier block has, and zeros for the others. For rows whose dim is no
// multiple of kBlock.
template <typename Real, typename T>
HWY_INLINE Pair<Real> load_rest(const T* row, int dim) {
  if (dim < kBlock<Real>) return load_short<Real>(row, dim);
  const Tag<Real> d;
  const Pair<Real> pair = load_pair<Real>(row, dim - kBlock<Real>);
  const int covered = kBlock<Real> - dim % kBlock<Real>;
  const Vec<Real> lane = hn::Iota(d, 0);
  const auto since = [&](Vec<Real> value, int begin) HWY_ATTR {
    return hn::IfThenElseZero(hn::Ge(lane, hn::Set(d, static_cast<Real>(begin))), value);
  };
  if constexpr (kInterleaved<T>) return {since(pair.first, (covered + 1) / 2), since(pair.second, covered / 2)};
  return {since(pair.first, covered), since(pair.second, covered - kLanes<Real>)};
}

// A row of q as load_pair reads keys of T, zero where the last block repeats a column.
template <typename T, typename Q, typename Real>
void load_query(const Q* from, int dim, Real* to) {
  const Tag<Real> d;
  const Blocks<Real, T> blocks{dim};
  const auto store = [&](int block, Vec<Real> first, Vec<Real> second) HWY_ATTR {
    hn::Store(first, d, to + block * kBlock<Real>);
    hn::Store(second, d, to + block * kBlock<Real> + kLanes<Real>);
  };
  if constexpr (std::is_same_v<T, Q>) {
    for (int block = 0; block < blocks.count(); ++block) {
      const bool is_full = block < blocks.full();
      const Pair<Real> pair = is_full ? load_pair<Real>(from, block * kBlock<Real>) : load_rest<Real>(from, dim);
      store(block, pair.first, pair.second);
    }
    return;
  }
  int block = 0;
  for (; block < blocks.full(); ++block) {
    const Vec<Real> low = load_floats(d, from + block * kBlock<Real>);
    const Vec<Real> high = load_floats(d, from + block * kBlock<Real> + kLanes<Real>);
#if HWY_TARGET != HWY_SCALAR
    if constexpr (kInterleaved<T>) {
      store(block, hn::ConcatEven(d, high, low), hn::ConcatOdd(d, high, low));
      continue;
    }
#endif
    store(block, low, high);
  }
  for (int lane = 0; block < blocks.count() && lane < kBlock<Real>; ++lane) {
    const int column = blocks.column(block, lane);
    to[block * kBlock<Real> + lane] =
        column < dim && column >= block * kBlock<Real> ? to_real<Real>(from[column]) : Real{0};
  }
}

// From the blocks of T to columns in their order. `to` has room for whole blocks.
template <typename T, typename Real>
void order_columns(const Real* from, int dim, Real* to) {
  const Blocks<Real, T> blocks{dim};
  int block = 0;
  for (; block < blocks.full(); ++block, from += kBlock<Real>) {
    const Tag<Real> d;
    const Vec<Real> first = hn::Load(d, from), second = hn::Load(d, from + kLanes<Real>);
    if constexpr (kInterleaved<T>) {
      hn::StoreInterleaved2(first, second, d, to + block * kBlock<Real>);
    } else {
      hn::StoreU(first, d, to + block * kBlock<Real>);
      hn::StoreU(second, d, to + block * kBlock<Real> + kLanes<Real>);
    }
  }
  for (int lane = 0; block < blocks.count() && lane < kBlock<Real>; ++lane) {
    if (const int column = blocks.column(block, lane); column < dim) to[column] = from[lane];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessella::cpu
HWY_AFTER_NAMESPACE();
