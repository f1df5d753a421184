// Rows of f32, bf16 or f16 tensors to fp32 vectors and back, rounding to nearest even; also transposed.
//
// Nothing is read or written past the given number of elements. bf16 and f16 are the bit patterns of
// portable/float16.hpp.
#if defined(TESSELLA_CPU_VECTOR_CONVERT_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSELLA_CPU_VECTOR_CONVERT_INL_HPP
#undef TESSELLA_CPU_VECTOR_CONVERT_INL_HPP
#else
#define TESSELLA_CPU_VECTOR_CONVERT_INL_HPP
#endif

#include "cpu/vector/exp2-inl.hpp"
#include "hwy/highway.h"
#include "portable/float16.hpp"

HWY_BEFORE_NAMESPACE();
namespace tessella::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using portable::BFloat16;
using portable::Float16;

// Hardware that converts f16; elsewhere by integer arithmetic.
#define TESSELLA_NATIVE_F16 (HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON)

template <class D>
HWY_INLINE hn::Vec<D> load_floats(D d, const float* from) {
  return hn::LoadU(d, from);
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
  // With an exponent of its own behind the fraction: no step sees a subnormal float, which would be flushed.
  const auto finite = hn::BitCast(d, hn::Add(magnitude, hn::Set(du, 112u << 23)));
  const auto subnormal = hn::Sub(hn::BitCast(d, hn::Add(magnitude, hn::Set(du, 113u << 23))), hn::Set(d, 0x1p-14f));
  const auto special = hn::BitCast(d, hn::Or(magnitude, hn::Set(du, 0x7F800000u)));
  const auto value = hn::IfThenElse(hn::Lt(finite, hn::Set(d, 0x1p-14f)), subnormal, finite);
  const auto is_special = hn::Ge(finite, hn::Set(d, 0x1p16f));
  return hn::Or(hn::IfThenElse(is_special, special, value), hn::BitCast(d, sign));
#endif
}

HWY_INLINE void store_floats(VecF value, float* to) { hn::StoreU(value, F32(), to); }

HWY_INLINE void store_floats(VecF value, BFloat16* to) {
  const F32 d;
  const I32 di;
  const hn::RebindToUnsigned<F32> du;
  const auto bits = hn::BitCast(du, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::BitCast(d, hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFFu))));
  const auto quiet = hn::BitCast(d, hn::Or(bits, hn::Set(du, 0x400000u)));
  const auto high = hn::ShiftRight<16>(hn::BitCast(du, hn::IfThenElse(hn::Eq(value, value), rounded, quiet)));
  const hn::Rebind<uint16_t, F32> du16;
  hn::StoreU(hn::DemoteTo(du16, hn::BitCast(di, high)), du16, reinterpret_cast<uint16_t*>(to));
}

HWY_INLINE void store_floats(VecF value, Float16* to) {
#if TESSELLA_NATIVE_F16
  const hn::Rebind<hwy::float16_t, F32> df16;
  hn::StoreU(hn::DemoteTo(df16, value), df16, reinterpret_cast<hwy::float16_t*>(to));
#else
  HWY_ALIGN float lanes[kLanes];
  hn::Store(value, F32(), lanes);
  for (int i = 0; i < kLanes; ++i) to[i] = portable::to_float16(lanes[i]);
#endif
}

// The first `count` < kLanes elements, zeros behind them.
template <typename T>
HWY_INLINE VecF load_first(const T* from, int count) {
  T padded[kLanes] = {};
  for (int i = 0; i < count; ++i) padded[i] = from[i];
  return load_floats(F32(), padded);
}

// to[i] = factor * from[i]; both may be unaligned, `from` is padded to whole vectors.
template <typename T>
void store_row(const float* from, VecF factor, int count, T* to) {
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) store_floats(hn::Mul(hn::Load(F32(), from + i), factor), to + i);
  if (i == count) return;
  T last[kLanes];
  store_floats(hn::Mul(hn::Load(F32(), from + i), factor), last);
  for (int rest = i; rest < count; ++rest) to[rest] = last[rest - i];
}

// to[column][row] = from[row][column * stride] for `lanes` rows, a multiple of kLanes.
template <typename T>
void load_transposed(const T* const* from, int lanes, int columns, int64_t stride, float* to) {
  int column = 0;
#if HWY_TARGET != HWY_SCALAR
  if (stride == 1) {
    const hn::CappedTag<float, 4> d4;
    const hn::RepartitionToWide<decltype(d4)> d2;
    for (; column + 4 <= columns; column += 4) {
      for (int row = 0; row < lanes; row += 4) {
        const auto a = load_floats(d4, from[row] + column);
        const auto b = load_floats(d4, from[row + 1] + column);
        const auto c = load_floats(d4, from[row + 2] + column);
        const auto e = load_floats(d4, from[row + 3] + column);
        const auto ab_low = hn::BitCast(d2, hn::InterleaveLower(d4, a, b));   // a0 b0 a1 b1
        const auto ab_high = hn::BitCast(d2, hn::InterleaveUpper(d4, a, b));  // a2 b2 a3 b3
        const auto ce_low = hn::BitCast(d2, hn::InterleaveLower(d4, c, e));
        const auto ce_high = hn::BitCast(d2, hn::InterleaveUpper(d4, c, e));
        float* block = to + static_cast<int64_t>(column) * lanes + row;
        hn::StoreU(hn::BitCast(d4, hn::InterleaveLower(d2, ab_low, ce_low)), d4, block);
        hn::StoreU(hn::BitCast(d4, hn::InterleaveUpper(d2, ab_low, ce_low)), d4, block + lanes);
        hn::StoreU(hn::BitCast(d4, hn::InterleaveLower(d2, ab_high, ce_high)), d4, block + 2 * lanes);
        hn::StoreU(hn::BitCast(d4, hn::InterleaveUpper(d2, ab_high, ce_high)), d4, block + 3 * lanes);
      }
    }
  }
#endif
  for (; column < columns; ++column) {
    for (int row = 0; row < lanes; ++row) {
      to[static_cast<int64_t>(column) * lanes + row] = portable::to_float(from[row][column * stride]);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessella::cpu
HWY_AFTER_NAMESPACE();

#endif  // TESSELLA_CPU_VECTOR_CONVERT_INL_HPP
