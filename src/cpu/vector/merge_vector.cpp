// Drives rows over threads.
#include "cpu/vector/merge_vector.hpp"

#include <algorithm>

#include "cpu/memory.hpp"
#include "cpu/parallel.hpp"

namespace tessella::cpu {
namespace {

// A piece of work of some 64 KB, so that handing it out costs nothing beside it.
int64_t task_rows(const core::MergeShape& shape) {
  const int64_t row_bytes = (shape.num_states + 1) * shape.head_dim * core::size_bytes(shape.dtype());
  return std::clamp<int64_t>((int64_t{64} << 10) / row_bytes, 1, 4096);
}

}  // namespace

template <typename Real>
MergeScratch<Real>::MergeScratch(const core::MergeShape& shape, std::byte* base) {
  Memory memory(base, bytes);
  memory.take(shape.num_states, rows);
  memory.take(shape.num_states, weights);
}

template <typename Real>
core::WorkspaceSize merge_workspace(const core::MergeShape& shape, int num_threads) {
  return {.state_bytes = 0, .scratch_bytes = num_threads * MergeScratch<Real>(shape, nullptr).bytes};
}

template <typename Real>
void run_merge(MergeRows<Real> merge_rows, const core::MergeArguments& arguments, const core::Plan& plan,
               core::Workspace workspace) {
  const int64_t rows = arguments.batch * arguments.seqlen * arguments.heads;
  const int64_t step = task_rows(arguments);
  auto* base = static_cast<std::byte*>(workspace.scratch);
  const int64_t thread_bytes = MergeScratch<Real>(arguments, nullptr).bytes;
  parallel_for((rows + step - 1) / step, plan.num_threads, arguments.cancel, [&](int64_t task, int worker) {
    merge_rows(arguments, task * step, std::min(rows, (task + 1) * step),
               MergeScratch<Real>(arguments, base + worker * thread_bytes));
  });
}

template core::WorkspaceSize merge_workspace<float>(const core::MergeShape&, int);
template core::WorkspaceSize merge_workspace<double>(const core::MergeShape&, int);
template void run_merge(MergeRows<float>, const core::MergeArguments&, const core::Plan&, core::Workspace);
template void run_merge(MergeRows<double>, const core::MergeArguments&, const core::Plan&, core::Workspace);

}  // namespace tessella::cpu
