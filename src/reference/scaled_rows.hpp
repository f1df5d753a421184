// Rows of q, k and v times their scales, and results as out holds them: divided by out_scale.
#pragma once

#include <algorithm>
#include <cmath>

#include "operations/attention/arguments.hpp"
#include "operations/attention/sequence.hpp"
#include "portable/quantize.hpp"
#include "portable/sequence_rows.hpp"
#include "reference/element.hpp"

namespace tessella::reference {

namespace detail {
template <typename Real>
void scale(const core::AttentionArguments& p, const core::Sequence& s, int64_t j, int64_t kv_head,
           const core::Operand& scales, int64_t count, Real* row) {
  if (scales.data == nullptr) return;
  const Real scale = load<Real>(p.scale_of(scales, s.batch_idx, s.row_kv + j, kv_head), scales.dtype, 0);
  for (int64_t c = 0; c < count; ++c) row[c] *= scale;
}
}  // namespace detail

// Query i of the sequence: head_dim_qk elements.
template <typename Real>
void load_q(const core::AttentionArguments& p, const core::Sequence& s, int64_t i, int64_t head, Real* row) {
  load_row(p.q().row(s.batch_idx, s.row_q + i, head), p.dtype(), p.head_dim_qk, row);
  const core::Operand& scales = p.tensors[core::Name::q_scale];
  if (scales.data == nullptr) return;
  const Real scale = load<Real>(p.scale_of_q(scales, s.batch_idx, s.row_q + i, head), scales.dtype, 0);
  for (int64_t c = 0; c < p.head_dim_qk; ++c) row[c] *= scale;
}

// Key j of the sequence: head_dim_qk elements.
template <typename Real>
void load_k(const core::AttentionArguments& p, const core::Sequence& s, int64_t j, int64_t kv_head, Real* row) {
  load_row(p.row_of(p.k(), s.batch_idx, s.row_kv + j, kv_head), p.k().dtype, p.head_dim_qk, row);
  detail::scale(p, s, j, kv_head, p.tensors[core::Name::k_scale], p.head_dim_qk, row);
}

// Its value: head_dim_v elements.
template <typename Real>
void load_v(const core::AttentionArguments& p, const core::Sequence& s, int64_t j, int64_t kv_head, Real* row) {
  if (p.features.has(core::Feature::transposed_v)) {
    const int64_t place = portable::key_place(s.row_kv + j);
    for (int64_t c = 0; c < p.head_dim_v; ++c) {
      row[c] = load<Real>(p.v().row(s.batch_idx, c, kv_head), p.v().dtype, place);
    }
  } else {
    load_row(p.row_of(p.v(), s.batch_idx, s.row_kv + j, kv_head), p.v().dtype, p.head_dim_v, row);
  }
  detail::scale(p, s, j, kv_head, p.tensors[core::Name::v_scale], p.head_dim_v, row);
}

// Out of query i: number times scale is the result. A scale that counts as zero divides by infinity
// (portable/quantize.hpp). Without out_scale both are 1.
struct OutScale {
  float scale = 1;
  float divisor = 1;
};
inline OutScale out_scale(const core::AttentionArguments& p, const core::Sequence& s, int64_t i, int64_t head) {
  const core::Operand& scales = p.tensors[core::Name::out_scale];
  if (scales.data == nullptr) return {};
  const auto scale = load<float>(p.scale_of_q(scales, s.batch_idx, s.row_q + i, head), scales.dtype, 0);
  return {scale, portable::divisor_of(scale)};
}

// What out would hold of a result without rounding: fp8 has a largest number, and what is beyond becomes that.
template <typename Real>
Real within_out(const core::AttentionArguments& p, const OutScale& of, Real result) {
  const Real stored = result / static_cast<Real>(of.divisor);
  if (!core::is_float8(p.out_dtype()) || std::isnan(stored)) return stored;
  const Real most = p.out_dtype() == core::DType::f8e4m3fn ? portable::kLargestFloat8 : portable::kLargestE5M2;
  return std::clamp(stored, -most, most);
}

}  // namespace tessella::reference
