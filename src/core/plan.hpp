// Plan: the kernel chosen for a problem, and why every better one was refused. Immutable, shared between threads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/kernel.hpp"
#include "core/problem.hpp"

namespace tessella::core {

struct Refusal {
  std::string_view kernel;
  std::string reason;
};

struct Plan {
  const Kernel* kernel = nullptr;
  Problem bounds;                             // sizes and features the plan was made for; its pointers are null
  std::shared_ptr<const std::string> source;  // what bounds.score_mod and bounds.mask_mod point into
  int num_threads = 1;
  WorkspaceSize workspace;
  std::shared_ptr<const void> prepared;  // what kernel->prepare made
  std::vector<Refusal> refusals;         // kernels that stand before the chosen one
  std::string explanation;
};

}  // namespace tessella::core
