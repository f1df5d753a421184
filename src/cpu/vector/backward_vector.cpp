// Memory of the backward kernels, and the kernels by instruction set.
#include "cpu/vector/backward_vector.hpp"

#include <algorithm>

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
  return of_set(set, backward_avx512<Real>, backward_avx2<Real>, backward_sse4<Real>, backward_baseline<Real>)();
}

#define TESSELLA_INSTANTIATE(Real)                                                    \
  template BackwardTiling vector_tiling<Real>(const AttentionShape&);                 \
  template int64_t vector_scratch_bytes<Real>(const AttentionShape&);                 \
  template BackwardScratch<Real>::BackwardScratch(const AttentionShape&, std::byte*); \
  template void BackwardTile<Real>::take(Memory&, const AttentionShape&, int64_t);    \
  template const VectorBackward<Real>& vector_backward(InstructionSet)
TESSELLA_INSTANTIATE(float);
TESSELLA_INSTANTIATE(double);
#undef TESSELLA_INSTANTIATE

}  // namespace tessella::cpu
