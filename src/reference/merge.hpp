// The oracle of merge: one row of the states of disjoint sets of keys, in float64 for the reference and in fp32 for the
// plain computation.
#pragma once

#include <cstdint>
#include <vector>

#include "core/arguments.hpp"
#include "core/kernel.hpp"
#include "operations/merge/arguments.hpp"
#include "reference/check.hpp"

namespace tessella::reference {

// out[0, head_dim) of a row; weights: scratch, one a state. Returns the LSE.
double merge_row(const core::MergeArguments& arguments, int64_t batch_idx, int64_t row, int64_t head, double* weights,
                 double* out);

// The same in fp32, not yet rounded to the dtype of out.
float plain_merge_row(const core::MergeArguments& arguments, int64_t batch_idx, int64_t row, int64_t head,
                      float* weights, float* out);

// The error that rounding alone may cause in the row, from merge_row()'s weights, out and LSE.
struct MergeNoise {
  std::vector<double> out;  // one an element
  double lse = 0;
};
MergeNoise merge_noise(const core::MergeArguments& arguments, int64_t batch_idx, int64_t row, int64_t head,
                       const double* weights, const double* out, double lse);

core::WorkspaceSize merge_workspace(const core::Shape& shape, int num_threads);
void merge_run(const core::Arguments& arguments, const core::Plan& plan, core::Workspace workspace, void* stream);

// Like check_forward(), for merge.
CheckReport check_merge(const core::MergeArguments& arguments, int64_t num_rows, uint64_t seed);

}  // namespace tessella::reference
