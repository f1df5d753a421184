// A plan and the workspace of its runs, one of which is under way at a time.
#pragma once

#include "device/memory.hpp"
#include "options/call.hpp"

namespace tessella::cli {

class PlannedCall {
 public:
  // Throws what the library says, std::bad_alloc or Error(out_of_memory).
  PlannedCall(const Placement& placement, const tessella_call* call);
  PlannedCall(const PlannedCall&) = delete;
  PlannedCall& operator=(const PlannedCall&) = delete;

  const char* kernel() const { return tessella_plan_kernel(plan_.get()); }
  // stream: of a GPU; NULL is the default one.
  void run(const tessella_call* call, void* stream) const {
    check(tessella_plan_run(plan_.get(), call, &workspace_, stream));
  }

 private:
  PlanHandle plan_;
  tessella_workspace workspace_;
  Memory state_, scratch_;
};

}  // namespace tessella::cli
