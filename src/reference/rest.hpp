// Rows of a packed q that belong to no sequence: like rows past a sequence's length they get output 0 and LSE -inf.
#pragma once

#include "operations/attention/arguments.hpp"
#include "operations/attention/sequence.hpp"
#include "reference/element.hpp"
#include "reference/score.hpp"

namespace tessella::reference {

// The rows after the last sequence, as one more sequence without queries.
inline core::Sequence rest(const core::AttentionArguments& p) {
  core::Sequence s;
  s.batch_idx = p.batch;
  if (p.cu_seqlens_q) {
    s.row_q = p.cu_seqlens_q.at(0, p.batch);
    s.slots_q = p.total_q - s.row_q;
  }
  return s;
}

// Rows [begin, end) of a sequence that are not valid. `zeros` holds a row of out.
template <typename Real>
void store_unused(const core::AttentionArguments& p, const core::Sequence& s, int64_t head, int64_t begin, int64_t end,
                  const Real* zeros) {
  const Real lse = kHidden<Real>;
  for (int64_t i = begin; i < end; ++i) {
    store_row(p.out().row(s.batch_idx, s.row_q + i, head), p.out_dtype(), p.head_dim_v, zeros);
    if (p.lse().data != nullptr) store_row(p.lse().row(s.batch_idx, s.row_q + i, head), p.lse().dtype, 1, &lse);
  }
}

}  // namespace tessella::reference
