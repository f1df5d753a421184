// Chooses a kernel for a shape: pure, host only. Says why each better kernel is not eligible.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "core/kernel.hpp"
#include "core/plan.hpp"

namespace tessella::core {

// Why the kernel would not run calls of this shape, or "".
std::string ineligible(const Kernel& kernel, const Shape& shape);

// Why it would not for their dtypes alone, or "".
std::string ineligible_dtypes(const Kernel& kernel, const Shape& shape);

// The kernel that must run, "" = any, and what names it: the option or a variable of the environment.
struct ForcedKernel {
  std::string_view name = {};
  const char* variable = nullptr;  // null: the option

  bool is_given() const { return !name.empty(); }
};

// The kernel that measurements prefer for a shape, and what they say of it: tried first where none is forced.
struct PreferredKernel {
  std::string name = {};  // "": none
  std::string reason = {};
};

// Walks the tables, best first, and passes over kernels of other operations and devices. Throws Error(unsupported) with
// every reason when none is left, Error(invalid_argument) for an unknown name.
Plan choose(const Shape& shape, std::span<const KernelTable> tables, ForcedKernel forced, const char* function,
            const PreferredKernel& preferred = {});

// Throws Error(invalid_argument) naming `function` if a call of this shape is not one that the plan was made for.
void check_fits(const Plan& plan, const Shape& shape, const char* function);

}  // namespace tessella::core
