#include "device/planned_call.hpp"

namespace tessella::cli {
namespace {

tessella_workspace sizes_of(const tessella_plan* plan) {
  tessella_workspace workspace = {};
  check(tessella_plan_workspace(plan, &workspace.state_bytes, &workspace.scratch_bytes));
  return workspace;
}

}  // namespace

PlannedCall::PlannedCall(const Placement& placement, const tessella_call* call)
    : plan_(make_plan(call)),
      workspace_(sizes_of(plan_.get())),
      state_(placement, workspace_.state_bytes),
      scratch_(placement, workspace_.scratch_bytes) {
  workspace_.state = state_.data();
  workspace_.scratch = scratch_.data();
  check(tessella_plan_initialize(plan_.get(), &workspace_, nullptr));
}

}  // namespace tessella::cli
