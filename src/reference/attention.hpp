// The oracle: one row of attention by plain loops, in float64 for the reference and in the precision of the inputs for
// the *plain* computation that scales every tolerance (docs/numerics.md).
#pragma once

#include <cmath>
#include <cstdint>

#include "core/arguments.hpp"
#include "core/kernel.hpp"
#include "operations/attention/arguments.hpp"
#include "operations/attention/sequence.hpp"

namespace tessella::reference {

// Softmax of one row.
template <typename Real>
struct RowSoftmax {
  const Real* scores;  // of every key of the sequence, in the row's scratch; -inf where hidden
  Real max;            // of the scores and the sink; 0 where both are -inf
  Real sum;            // of exp(s_j - max) over the keys and the sink
  Real lse;

  Real prob(Real score) const { return std::exp(score - max) / sum; }
};

// Elements of scratch that a row needs: linear in the length.
int64_t row_scratch(const core::AttentionShape& shape);

// out[0, head_dim_v) of query i of a head.
RowSoftmax<double> attention_row(const core::AttentionArguments& arguments, const core::Sequence& sequence,
                                 int64_t head, int64_t i, double* scratch, double* out);

// The same row by standard attention: S and softmax in fp32, P normalised and rounded to the dtype of the inputs, fp32
// accumulation. Beside fp8 inputs P is rounded to e4m3, of which the row's largest takes the largest number. The result
// is not yet divided by out_scale and rounded to the dtype of out. Returns the LSE.
float plain_row(const core::AttentionArguments& arguments, const core::Sequence& sequence, int64_t head, int64_t i,
                float* scratch, float* out);

// Threads of a run that asks for `requested`; 0 = all that the process may use, which is also the most there are.
int num_threads(int requested);

core::WorkspaceSize attention_workspace(const core::Shape& shape, int num_threads);
void attention_run(const core::Arguments& arguments, const core::Plan& plan, core::Workspace workspace, void* stream);

}  // namespace tessella::reference
