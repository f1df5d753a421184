// Rows of tensors to vectors and back, rounding to nearest even; also transposed. Vectors of float meet f32, bf16 and
// f16, vectors of double f64 and f32.
//
// Nothing is read or written past the given number of elements. bf16 and f16 are the bit patterns of
// portable/float16.hpp.
#pragma once

#include <type_traits>

#include "core/dtype.hpp"
#include "cpu/vector/exp2-inl.hpp"
#include "hwy/highway.h"
#include "portable/float16.hpp"
#include "portable/float8.hpp"

HWY_BEFORE_NAMESPACE();
namespace tessella::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using portable::BFloat16;
using portable::Float16;

// Hardware that converts f16; elsewhere by integer arithmetic.
#define TESSELLA_NATIVE_F16 (HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON)

// Calls fn with a null pointer to elements of the dtype, which is one that vectors of Real meet.
template <typename Real, typename Fn>
auto with_elements(core::DType dtype, Fn&& fn) {
  if constexpr (std::is_same_v<Real, double>) {
    if (dtype == core::DType::f64) return fn(static_cast<const double*>(nullptr));
  } else {
    if (dtype == core::DType::bf16) return fn(static_cast<const BFloat16*>(nullptr));
    if (dtype == core::DType::f16) return fn(static_cast<const Float16*>(nullptr));
  }
  return fn(static_cast<const float*>(nullptr));
}

template <typename Real, typename T>
Real to_real(T value) {
  if constexpr (std::is_arithmetic_v<T>) {
    return Real{value};
  } else {
    return portable::to_float(value);
  }
}

template <class D>
HWY_INLINE hn::Vec<D> load_floats(D d, const double* from) {
  return hn::LoadU(d, from);
}

template <class D>
HWY_INLINE hn::Vec<D> load_floats(D d, const float* from) {
  if constexpr (std::is_same_v<hn::TFromD<D>, double>) {
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<float, D>(), from));
  } else {
    return hn::LoadU(d, from);
  }
}

template <class D>
HWY_INLINE hn::Vec<D> load_floats(D d, const BFloat16* from) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint16_t, D> du16;
  const auto bits = hn::PromoteTo(du, hn::LoadU(du16, reinterpret_cast<const uint16_t*>(from)));
  return hn::BitCast(d, hn::ShiftLeft<16>(bits));
}

template <class D>
HWY_INLINE hn::Vec<D> load_floats(D d, const Float16* from) {
#if TESSELLA_NATIVE_F16
  return hn::PromoteTo(d, hn::LoadU(hn::Rebind<hwy::float16_t, D>(), reinterpret_cast<const hwy::float16_t*>(from)));
#else
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint16_t, D> du16;
  const auto bits = hn::PromoteTo(du, hn::LoadU(du16, reinterpret_cast<const uint16_t*>(from)));
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000u)));
  const auto magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(du, 0x7FFFu)));
  // Adds an exponent first, so that no step sees a subnormal float, which would be flushed.
  const auto finite = hn::BitCast(d, hn::Add(magnitude, hn::Set(du, 112u << 23)));
  const auto subnormal = hn::Sub(hn::BitCast(d, hn::Add(magnitude, hn::Set(du, 113u << 23))), hn::Set(d, 0x1p-14f));
  const auto special = hn::BitCast(d, hn::Or(magnitude, hn::Set(du, 0x7F800000u)));
  const auto value = hn::IfThenElse(hn::Lt(finite, hn::Set(d, 0x1p-14f)), subnormal, finite);
  const auto is_special = hn::Ge(finite, hn::Set(d, 0x1p16f));
  return hn::Or(hn::IfThenElse(is_special, special, value), hn::BitCast(d, sign));
#endif
}

HWY_INLINE void store_floats(Vec<double> value, double* to) { hn::StoreU(value, Tag<double>(), to); }
HWY_INLINE void store_floats(Vec<float> value, float* to) { hn::StoreU(value, Tag<float>(), to); }

HWY_INLINE void store_floats(Vec<double> value, float* to) {
#if HWY_TARGET == HWY_EMU128 || HWY_TARGET == HWY_SCALAR
  // Highway makes infinity the largest float there.
  HWY_ALIGN double lanes[kLanes<double>];
  hn::Store(value, Tag<double>(), lanes);
  for (int i = 0; i < kLanes<double>; ++i) to[i] = static_cast<float>(lanes[i]);
#else
  const hn::Rebind<float, Tag<double>> narrow;
  hn::StoreU(hn::DemoteTo(narrow, value), narrow, to);
#endif
}

HWY_INLINE void store_floats(Vec<float> value, BFloat16* to) {
  const Tag<float> d;
  const IntTag<float> di;
  const hn::RebindToUnsigned<Tag<float>> du;
  const auto bits = hn::BitCast(du, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::BitCast(d, hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFFu))));
  const auto quiet = hn::BitCast(d, hn::Or(bits, hn::Set(du, 0x400000u)));
  const auto high = hn::ShiftRight<16>(hn::BitCast(du, hn::IfThenElse(hn::Eq(value, value), rounded, quiet)));
  const hn::Rebind<uint16_t, Tag<float>> du16;
  hn::StoreU(hn::DemoteTo(du16, hn::BitCast(di, high)), du16, reinterpret_cast<uint16_t*>(to));
}

HWY_INLINE void store_floats(Vec<float> value, Float16* to) {
#if TESSELLA_NATIVE_F16
  const hn::Rebind<hwy::float16_t, Tag<float>> df16;
  hn::StoreU(hn::DemoteTo(df16, value), df16, reinterpret_cast<hwy::float16_t*>(to));
#else
  HWY_ALIGN float lanes[kLanes<float>];
  hn::Store(value, Tag<float>(), lanes);
  for (int i = 0; i < kLanes<float>; ++i) to[i] = portable::to_float16(lanes[i]);
#endif
}

// The first `count` < kLanes<Real> elements, then zeros.
template <typename Real, typename T>
HWY_INLINE Vec<Real> load_first(const T* from, int count) {
  T padded[kLanes<Real>] = {};
  for (int i = 0; i < count; ++i) padded[i] = from[i];
  return load_floats(Tag<Real>(), padded);
}

// to[i] = factor * from[i]; both may be unaligned, `from` is padded to whole vectors.
template <typename Real, typename T>
void store_row(const Real* from, Real factor, int count, T* to) {
  const Tag<Real> d;
  const Vec<Real> by = hn::Set(d, factor);
  int i = 0;
  for (; i + kLanes<Real> <= count; i += kLanes<Real>) store_floats(hn::Mul(hn::Load(d, from + i), by), to + i);
  if (i == count) return;
  T last[kLanes<Real>];
  store_floats(hn::Mul(hn::Load(d, from + i), by), last);
  for (int rest = i; rest < count; ++rest) to[rest] = last[rest - i];
}

#if HWY_TARGET != HWY_SCALAR
// to[c * lanes + r] = from[r][c] of a square as wide as 16 bytes.
template <typename T>
HWY_INLINE void transpose_square(const T* const* from, int64_t column, int lanes, float* to) {
  const hn::CappedTag<float, 4> d4;
  const hn::RepartitionToWide<decltype(d4)> d2;
  const auto a = load_floats(d4, from[0] + column);
  const auto b = load_floats(d4, from[1] + column);
  const auto c = load_floats(d4, from[2] + column);
  const auto e = load_floats(d4, from[3] + column);
  const auto ab_low = hn::BitCast(d2, hn::InterleaveLower(d4, a, b));   // a0 b0 a1 b1
  const auto ab_high = hn::BitCast(d2, hn::InterleaveUpper(d4, a, b));  // a2 b2 a3 b3
  const auto ce_low = hn::BitCast(d2, hn::InterleaveLower(d4, c, e));
  const auto ce_high = hn::BitCast(d2, hn::InterleaveUpper(d4, c, e));
  hn::StoreU(hn::BitCast(d4, hn::InterleaveLower(d2, ab_low, ce_low)), d4, to);
  hn::StoreU(hn::BitCast(d4, hn::InterleaveUpper(d2, ab_low, ce_low)), d4, to + lanes);
  hn::StoreU(hn::BitCast(d4, hn::InterleaveLower(d2, ab_high, ce_high)), d4, to + 2 * lanes);
  hn::StoreU(hn::BitCast(d4, hn::InterleaveUpper(d2, ab_high, ce_high)), d4, to + 3 * lanes);
}

template <typename T>
HWY_INLINE void transpose_square(const T* const* from, int64_t column, int lanes, double* to) {
  const hn::CappedTag<double, 2> d2;
  const auto a = load_floats(d2, from[0] + column);
  const auto b = load_floats(d2, from[1] + column);
  hn::StoreU(hn::InterleaveLower(d2, a, b), d2, to);
  hn::StoreU(hn::InterleaveUpper(d2, a, b), d2, to + lanes);
}
#endif

// to[column][row] = from[row][column * stride] for `lanes` rows, a multiple of kLanes.
template <typename T, typename Real>
void load_transposed(const T* const* from, int lanes, int columns, int64_t stride, Real* to) {
  int column = 0;
#if HWY_TARGET != HWY_SCALAR
  constexpr int kSquare = 16 / sizeof(Real);
  for (; stride == 1 && column + kSquare <= columns; column += kSquare) {
    for (int row = 0; row < lanes; row += kSquare) {
      transpose_square(from + row, column, lanes, to + static_cast<int64_t>(column) * lanes + row);
    }
  }
#endif
  for (; column < columns; ++column) {
    for (int row = 0; row < lanes; ++row) {
      to[static_cast<int64_t>(column) * lanes + row] = to_real<Real>(from[row][column * stride]);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessella::cpu
HWY_AFTER_NAMESPACE();
