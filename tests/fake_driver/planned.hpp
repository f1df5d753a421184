// Plans of a kernel of the table, whatever the table would choose.
#pragma once

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>
#include <string_view>

#include "core/choose.hpp"
#include "core/plan.hpp"
#include "cuda/kernels.hpp"

namespace tessella::tests {

inline const core::Kernel& named(std::string_view name) {
  const auto found = std::ranges::find(cuda::cuda_kernels(), name, &core::Kernel::name);
  if (found == cuda::cuda_kernels().end()) throw std::invalid_argument(std::string(name));
  return *found;
}

// Nothing is compiled for it.
inline core::Plan chosen(std::string_view kernel, const core::Shape& shape) {
  return core::choose(shape, std::array{cuda::cuda_kernels()}, {kernel}, "plan_make");
}

// One that runs.
inline core::Plan planned(std::string_view kernel, const core::Shape& shape) {
  core::Plan plan = chosen(kernel, shape);
  plan.prepared = plan.kernel->prepare(plan);
  return plan;
}

// Whether the kernel describes itself with these words first.
inline bool says(std::string_view kernel, const core::Shape& shape, std::string_view words) {
  return chosen(kernel, shape).explanation.find("\n" + std::string(words)) != std::string::npos;
}

}  // namespace tessella::tests
