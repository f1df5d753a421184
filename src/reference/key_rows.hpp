// Rows of k and v of one key, times their scales.
#pragma once

#include "core/sequence.hpp"
#include "reference/element.hpp"

namespace tessella::reference {

namespace detail {
template <typename Real>
void load_scaled(const core::AttentionArguments& p, const core::Sequence& s, int64_t j, int64_t kv_head,
                 const core::Operand& rows, const core::Operand& scales, int64_t count, Real* row) {
  load_row(p.row_of(rows, s.batch_idx, s.row_kv + j, kv_head), rows.dtype, count, row);
  if (scales.data == nullptr) return;
  const Real scale = load<Real>(p.scale_of(scales, s.batch_idx, s.row_kv + j, kv_head), scales.dtype, 0);
  for (int64_t c = 0; c < count; ++c) row[c] *= scale;
}
}  // namespace detail

// Key j of the sequence: head_dim_qk elements.
template <typename Real>
void load_k(const core::AttentionArguments& p, const core::Sequence& s, int64_t j, int64_t kv_head, Real* row) {
  detail::load_scaled(p, s, j, kv_head, p.k(), p.tensors[core::Name::k_scale], p.head_dim_qk, row);
}

// Its value: head_dim_v elements.
template <typename Real>
void load_v(const core::AttentionArguments& p, const core::Sequence& s, int64_t j, int64_t kv_head, Real* row) {
  detail::load_scaled(p, s, j, kv_head, p.v(), p.tensors[core::Name::v_scale], p.head_dim_v, row);
}

}  // namespace tessella::reference
