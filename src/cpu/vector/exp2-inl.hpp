// 2^x, relative error below 2e-7 in float and 3e-16 in double: split off floor(x), a polynomial on [0, 1), scale by the
// integer part.
//
// The coefficients are in exp2.hpp. 2^-inf is 0, NaN stays NaN, results below the normal range may flush to 0. Without
// AVX-512 x must be below 128 in float, below 1024 in double.
#pragma once

#include <cstddef>
#include <limits>

#include "cpu/exp2.hpp"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tessella::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Real is float or double: what the algorithm computes in.
template <typename Real>
using Tag = hn::ScalableTag<Real>;
template <typename Real>
using IntTag = hn::RebindToSigned<Tag<Real>>;
template <typename Real>
using Vec = hn::Vec<Tag<Real>>;
template <typename Real>
using IntVec = hn::Vec<IntTag<Real>>;
template <typename Real>
using Mask = hn::Mask<Tag<Real>>;

template <typename Real>
inline constexpr int kLanes = static_cast<int>(hn::MaxLanes(Tag<Real>()));

// of[0] + of[1] x + of[2] x^2 ...
template <class V, size_t kCount>
HWY_INLINE V polynomial(V x, const hn::TFromV<V> (&of)[kCount]) {
  const hn::DFromV<V> d;
  V sum = hn::Set(d, of[kCount - 1]);
  HWY_UNROLL(12)
  for (size_t i = kCount - 1; i > 0; --i) sum = hn::MulAdd(sum, x, hn::Set(d, of[i - 1]));
  return sum;
}

template <class V>
HWY_INLINE V exp2_fraction(V x) {
  if constexpr (sizeof(hn::TFromV<V>) == sizeof(double)) {
    return polynomial(x, kExp2Double);
  } else {
    return polynomial(x, kExp2);
  }
}

#if HWY_TARGET == HWY_AVX3
// x - floor(x), exceptions suppressed; 0 for infinities.
HWY_INLINE Vec<float> fraction(Vec<float> x) { return Vec<float>{_mm512_reduce_ps(x.raw, 9)}; }
HWY_INLINE Vec<double> fraction(Vec<double> x) { return Vec<double>{_mm512_reduce_pd(x.raw, 9)}; }
// p 2^floor(x)
HWY_INLINE Vec<float> scale_by_power(Vec<float> p, Vec<float> x) { return Vec<float>{_mm512_scalef_ps(p.raw, x.raw)}; }
HWY_INLINE Vec<double> scale_by_power(Vec<double> p, Vec<double> x) {
  return Vec<double>{_mm512_scalef_pd(p.raw, x.raw)};
}
#endif

template <class V>
HWY_INLINE V exp2(V x) {
#if HWY_TARGET == HWY_AVX3
  return scale_by_power(exp2_fraction(fraction(x)), x);
#else
  using Real = hn::TFromV<V>;
  using Limits = std::numeric_limits<Real>;
  constexpr int kBias = Limits::max_exponent - 1;
  constexpr int kFractionBits = Limits::digits - 1;
  constexpr Real kWhole = Real{1} / Limits::epsilon() + kBias;  // added to n it has n + kBias in its lowest bits
  const hn::DFromV<V> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const V lowest = hn::Set(d, Real{-kBias});
  x = hn::IfThenElse(hn::Lt(x, lowest), lowest, x);  // not Max, which may lose a NaN
  const V floor = hn::Floor(x);
  const V power = hn::BitCast(d, hn::ShiftLeft<kFractionBits>(hn::BitCast(du, hn::Add(floor, hn::Set(d, kWhole)))));
  return hn::Mul(exp2_fraction(hn::Sub(x, floor)), power);
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace tessella::cpu
HWY_AFTER_NAMESPACE();
