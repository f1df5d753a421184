// Merge on vectors: the same instruction sets as the forward kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/kernel.hpp"
#include "core/plan.hpp"
#include "operations/merge/arguments.hpp"

namespace tessella::cpu {

// Scratch of one thread, entries for every state.
template <typename Real>
struct MergeScratch {
  const std::byte** rows = nullptr;
  Real* weights = nullptr;  // aligned and padded to 16
  int64_t bytes = 0;

  MergeScratch(const core::MergeShape& shape, std::byte* base);
};

template <typename Real>
using MergeRows = void (*)(const core::MergeArguments& arguments, int64_t begin, int64_t end,
                           const MergeScratch<Real>& scratch);

template <typename Real>
core::WorkspaceSize merge_workspace(const core::MergeShape& shape, int num_threads);
template <typename Real>
void run_merge(MergeRows<Real> merge_rows, const core::MergeArguments& arguments, const core::Plan& plan,
               core::Workspace workspace);

}  // namespace tessella::cpu
