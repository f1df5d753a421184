#include "cpu/copy_pages.hpp"

#include <cstring>

#include "cpu/parallel.hpp"
#include "operations/copy_pages/arguments.hpp"
#include "operations/copy_pages/page_runs.hpp"

namespace tessella::cpu {

std::string describe_copy_pages(const core::Plan& plan) {
  return "a page at a time, " + threads_string(plan.num_threads);
}

void run_copy_pages(const core::Arguments& arguments, const core::Plan& plan, core::Workspace, void*) {
  const core::CopyPagesArguments& a = core::copy_pages(arguments);
  parallel_for(a.num_pools * a.num_pairs, plan.num_threads, a.cancel, [&](int64_t task, int) {
    const int64_t from = a.pairs.at(task % a.num_pairs, 0), into = a.pairs.at(task % a.num_pairs, 1);
    if (from < 0 || from == into) return;
    const core::PageRuns runs = core::page_runs(a.given[static_cast<size_t>(task / a.num_pairs)]);
    for (int64_t i = 0; i < runs.outer; ++i) {
      for (int64_t j = 0; j < runs.inner; ++j) {
        const int64_t at = i * runs.outer_stride + j * runs.inner_stride;
        std::memcpy(runs.data + into * runs.page_stride + at, runs.data + from * runs.page_stride + at,
                    static_cast<size_t>(runs.bytes));
      }
    }
  });
}

}  // namespace tessella::cpu
