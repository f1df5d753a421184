// Sums of the lanes of many vectors at once. A vector's lanes are summed in the same order at any index.
#pragma once

#include "cpu/vector/exp2-inl.hpp"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tessella::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR
// In each 16 bytes: lane i is the sum of those of the i-th vector.
HWY_INLINE Vec<float> sum_in_blocks(const Vec<float>* v) {
  const Tag<float> d;
  const hn::RepartitionToWide<Tag<float>> d64;
  const auto halve = [&](Vec<float> a, Vec<float> b) HWY_ATTR {
    return hn::BitCast(d64, hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
  };
  const auto low = halve(v[0], v[1]), high = halve(v[2], v[3]);
  return hn::Add(hn::BitCast(d, hn::InterleaveLower(d64, low, high)),
                 hn::BitCast(d, hn::InterleaveUpper(d64, low, high)));
}
HWY_INLINE Vec<double> sum_in_blocks(const Vec<double>* v) {
  const Tag<double> d;
  return hn::Add(hn::InterleaveLower(d, v[0], v[1]), hn::InterleaveUpper(d, v[0], v[1]));
}
#endif

// Lane i is the sum of the lanes of v[i].
template <typename Real>
HWY_INLINE Vec<Real> sum_each(const Vec<Real>* v) {
#if HWY_TARGET == HWY_SCALAR
  return v[0];
#else
  constexpr int kOfBlock = 16 / sizeof(Real);
  constexpr int kCount = kLanes<Real> / kOfBlock;
  static_assert(kCount == 1 || kCount == 2 || kCount == 4);
#if HWY_MAX_BYTES >= 32
  const Tag<Real> d;
  const auto fold = [&](Vec<Real> a, Vec<Real> b)
                        HWY_ATTR { return hn::Add(hn::ConcatLowerLower(d, b, a), hn::ConcatUpperUpper(d, b, a)); };
  if constexpr (kCount == 2) return fold(sum_in_blocks(v), sum_in_blocks(v + kOfBlock));
  if constexpr (kCount == 4) {
    const auto even = fold(sum_in_blocks(v), sum_in_blocks(v + 2 * kOfBlock));
    const auto odd = fold(sum_in_blocks(v + kOfBlock), sum_in_blocks(v + 3 * kOfBlock));
    return hn::Add(hn::OddEvenBlocks(hn::SwapAdjacentBlocks(odd), even),
                   hn::OddEvenBlocks(odd, hn::SwapAdjacentBlocks(even)));
  }
#endif
  return sum_in_blocks(v);
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace tessella::cpu
HWY_AFTER_NAMESPACE();
