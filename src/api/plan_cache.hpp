// The cache of plans for plain calls.
#pragma once

#include <memory>

#include "core/choose.hpp"
#include "core/fields.hpp"
#include "core/plan.hpp"
#include "core/shape.hpp"

namespace tessella::api {

// Chooses and prepares a kernel for calls up to this shape.
core::Plan make_plan(const core::Shape& shape, core::ForcedKernel forced, const char* function);

// The plan of exactly this shape: found among the most recently used of the process, or made. Throws as core::choose()
// does, and what preparing a kernel throws.
std::shared_ptr<const core::Plan> plan_of_key(const core::Shape& shape, core::ForcedKernel forced,
                                              const char* function);

// Makes all plans anew, where no other thread is at the cache.
void forget_plans();

// 0 is resolved: inside a small oneTBB arena all threads are few.
int32_t threads_of_key(core::Device device, int32_t num_threads);

// The plan of the call's rounded shape (core/fields.hpp).
template <typename Arguments>
std::shared_ptr<const core::Plan> cached_plan(const Arguments& call, core::ForcedKernel forced, const char* function) {
  const typename Arguments::Self& shape = call;
  auto key = core::rounded(shape);
  key.num_threads = threads_of_key(key.device, key.num_threads);
  return plan_of_key(core::Shape::view(key), forced, function);
}

}  // namespace tessella::api
