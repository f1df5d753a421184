// The cache of plans for plain calls.
#pragma once

#include <memory>

#include "core/choose.hpp"
#include "core/plan.hpp"
#include "core/shape.hpp"

namespace tessella::api {

// The plan of the call's rounded shape (core/fields.hpp): found among the most recently used of the process, or made.
// Throws as core::choose() does, and what preparing a kernel throws.
std::shared_ptr<const core::Plan> cached_plan(const core::Shape& shape, core::ForcedKernel forced,
                                              const char* function);

// Chooses and prepares a kernel for calls up to this shape.
core::Plan make_plan(const core::Shape& shape, core::ForcedKernel forced, const char* function);

}  // namespace tessella::api
