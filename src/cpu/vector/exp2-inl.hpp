// 2^x in fp32, relative error below 2e-7: split off floor(x), a polynomial on [0, 1), scale by the integer part.
//
// The coefficients are in exp2.hpp. 2^-inf is 0, NaN stays NaN, results below 2^-126 may flush to 0. Without AVX-512 x
// must be below 128.
#if defined(TESSELLA_CPU_VECTOR_EXP2_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSELLA_CPU_VECTOR_EXP2_INL_HPP
#undef TESSELLA_CPU_VECTOR_EXP2_INL_HPP
#else
#define TESSELLA_CPU_VECTOR_EXP2_INL_HPP
#endif

#include "cpu/exp2.hpp"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tessella::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using I32 = hn::RebindToSigned<F32>;
using VecF = hn::Vec<F32>;
using VecI = hn::Vec<I32>;
using MaskF = hn::Mask<F32>;

inline constexpr int kLanes = static_cast<int>(hn::MaxLanes(F32()));

HWY_INLINE VecF exp2_fraction(VecF x) {
  const F32 d;
  VecF p = hn::MulAdd(x, hn::Set(d, kExp2[5]), hn::Set(d, kExp2[4]));
  p = hn::MulAdd(p, x, hn::Set(d, kExp2[3]));
  p = hn::MulAdd(p, x, hn::Set(d, kExp2[2]));
  p = hn::MulAdd(p, x, hn::Set(d, kExp2[1]));
  return hn::MulAdd(p, x, hn::Set(d, kExp2[0]));
}

HWY_INLINE VecF exp2(VecF x) {
#if HWY_TARGET == HWY_AVX3
  constexpr int kMinusFloor = 9;  // x - floor(x), exceptions suppressed; 0 for infinities
  const VecF fraction{_mm512_reduce_ps(x.raw, kMinusFloor)};
  return VecF{_mm512_scalef_ps(exp2_fraction(fraction).raw, x.raw)};  // p * 2^floor(x)
#else
  const F32 d;
  const I32 di;
  const VecF lowest = hn::Set(d, -127.0f);
  x = hn::IfThenElse(hn::Lt(x, lowest), lowest, x);  // not Max, which may lose a NaN
  const VecF floor = hn::Floor(x);
#if HWY_TARGET == HWY_EMU128 || HWY_TARGET == HWY_SCALAR
  // Lanes are C++'s numbers there, and C++ has no integer for a NaN. The fraction keeps it.
  const VecI whole = hn::ConvertTo(di, hn::IfThenElse(hn::Eq(floor, floor), floor, hn::Zero(d)));
#else
  const VecI whole = hn::ConvertTo(di, floor);
#endif
  const VecI exponent = hn::Add(whole, hn::Set(di, 127));
  const VecF power = hn::BitCast(d, hn::ShiftLeft<23>(exponent));
  return hn::Mul(exp2_fraction(hn::Sub(x, floor)), power);
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace tessella::cpu
HWY_AFTER_NAMESPACE();

#endif  // TESSELLA_CPU_VECTOR_EXP2_INL_HPP
