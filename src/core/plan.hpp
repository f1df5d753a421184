// Plan: the kernel chosen for a shape, and why every better one is not eligible. Immutable, shared between threads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/kernel.hpp"
#include "core/shape.hpp"

namespace tessella::core {

struct IneligibleKernel {
  std::string_view kernel;
  std::string reason;
};

struct Plan {
  const Kernel* kernel = nullptr;
  Shape shape;  // of the largest call that it serves, with all that it points to
  int num_threads = 1;
  WorkspaceSize workspace;
  int64_t made_bytes = 0;                    // of the schedule, or the map of a mask, that its runs read; 0: none
  std::shared_ptr<const void> recipe;        // what kernel->offer made
  std::shared_ptr<const void> prepared;      // what kernel->prepare made
  std::vector<IneligibleKernel> ineligible;  // kernels that stand before the chosen one
  std::string explanation;
};

}  // namespace tessella::core
