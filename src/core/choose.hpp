// Chooses a kernel for a problem: pure, host only. Says why each better kernel was refused.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "core/kernel.hpp"
#include "core/plan.hpp"

namespace tessella::core {

// Why the kernel would not run the problem, or "".
std::string refusal(const Kernel& kernel, const Problem& problem);

// Walks the tables, best first, and passes over kernels of other devices. A non-empty `forced` names the kernel that
// must run.
// Throws Error(unsupported) with every reason when none is left, Error(invalid_argument) for an unknown name.
Plan choose(const Problem& problem, std::span<const KernelTable> tables, std::string_view forced, const char* function);

}  // namespace tessella::core
