// Compiles backward-inl.hpp once per instruction set.
#include "cpu/vector/backward_vector.hpp"

#include <algorithm>

#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_AVX3_DL | HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/vector/backward_vector.cpp"
#include "hwy/foreach_target.h"  // must come before all that includes highway.h

#include "cpu/vector/backward-inl.hpp"
#include "hwy/highway.h"

#if HWY_ONCE

namespace tessella::cpu {
namespace {

using core::AttentionShape;
using core::Feature;

// K, V and their gradients fill about half a megabyte.
template <typename Real>
int64_t block_keys(const AttentionShape& p) {
  const int64_t row_bytes = std::max(p.head_dim_qk, p.head_dim_v) * static_cast<int64_t>(sizeof(Real));
  return row_bytes <= 256 ? 256 : row_bytes <= 512 ? 128 : kTileKeys;
}

}  // namespace

template <typename Real>
BackwardTiling vector_tiling(const AttentionShape& p) {
  return {block_keys<Real>(p), kQueryTileRows, round_up(p.head_dim_qk, 16), false, kTileKeys};
}

template <typename Real>
int64_t vector_scratch_bytes(const AttentionShape& p) {
  return BackwardScratch<Real>(p, nullptr).bytes;
}

template <typename Real>
BackwardScratch<Real>::BackwardScratch(const AttentionShape& p, std::byte* base)
    : qk_stride(round_up(p.head_dim_qk, 16)), v_stride(round_up(p.head_dim_v, 16)) {
  const int64_t keys = block_keys<Real>(p);
  Memory memory(base, bytes);
  memory.take(p.head_dim_qk * kQueryTileRows, q_transposed);
  memory.take(p.head_dim_v * kQueryTileRows, d_out_transposed);
  memory.take(kQueryTileRows * qk_stride, q);
  memory.take(kQueryTileRows * v_stride, d_out);
  memory.take(kQueryTileRows * qk_stride, dq);
  memory.take(keys * qk_stride, k);
  memory.take(keys * v_stride, v);
  memory.take(keys * qk_stride, dk);
  memory.take(keys * v_stride, dv);
  tile.take(memory, p, kTileKeys * kQueryTileRows);
}

template <typename Real>
void BackwardTile<Real>::take(Memory& memory, const AttentionShape& p, int64_t count) {
  memory.take(count, probs);
  memory.take(count, d_scores);
  if (p.features.has(Feature::softcap)) memory.take(count, products);
  if (p.features.has(Feature::dropout)) memory.take(count, dropout);
}

template <typename Real>
const VectorBackward<Real>& vector_backward(InstructionSet set) {
  static constexpr VectorBackward<Real> kNone;
  switch (set) {
    case InstructionSet::avx512:
#if HWY_TARGETS & HWY_AVX3
      return N_AVX3::kVectorBackward<Real>;
#else
      return kNone;
#endif
    case InstructionSet::avx2:
#if HWY_TARGETS & HWY_AVX2
      return N_AVX2::kVectorBackward<Real>;
#else
      return kNone;
#endif
    case InstructionSet::sse4:
#if HWY_TARGETS & HWY_SSE4
      return N_SSE4::kVectorBackward<Real>;
#else
      return kNone;
#endif
    case InstructionSet::baseline: return HWY_STATIC_DISPATCH(kVectorBackward<Real>);
  }
  return kNone;
}

template const VectorBackward<float>& vector_backward(InstructionSet);
template const VectorBackward<double>& vector_backward(InstructionSet);
template void BackwardTile<float>::take(Memory&, const AttentionShape&, int64_t);
template int64_t vector_scratch_bytes<float>(const AttentionShape&);

}  // namespace tessella::cpu

#endif  // HWY_ONCE
