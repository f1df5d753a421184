// A page of a pool as runs of bytes without gaps: one run where the page lies together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "operations/copy_pages/arguments.hpp"

namespace tessella::core {

// outer * inner runs of `bytes` bytes; strides in bytes.
struct PageRuns {
  std::byte* data = nullptr;
  int64_t page_stride = 0;
  int64_t outer = 1, outer_stride = 0;
  int64_t inner = 1, inner_stride = 0;
  int64_t bytes = 0;
};

inline PageRuns page_runs(const CopyPagesArguments::Pool& pool) {
  const Operand& t = pool.pages;
  PageRuns runs{.data = t.data,
                .page_stride = bytes_of(t.dtype, t.batch_stride),
                .outer = pool.rows,
                .outer_stride = bytes_of(t.dtype, t.row_stride),
                .inner = pool.heads,
                .inner_stride = bytes_of(t.dtype, t.head_stride),
                .bytes = bytes_of(t.dtype, pool.head_dim)};
  if (runs.outer_stride < runs.inner_stride) {  // heads before rows
    std::swap(runs.outer, runs.inner);
    std::swap(runs.outer_stride, runs.inner_stride);
  }
  const auto join_inner = [&] {
    if (runs.inner > 1 && runs.inner_stride != runs.bytes) return;
    runs.bytes *= runs.inner;
    runs.inner = runs.outer;
    runs.inner_stride = runs.outer_stride;
    runs.outer = 1;
    runs.outer_stride = 0;
  };
  join_inner();
  join_inner();
  return runs;
}

}  // namespace tessella::core
