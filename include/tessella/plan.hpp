// Plan: a kernel chosen and prepared for calls of one kind. Immutable; threads may share it.
#pragma once

#include <memory>
#include <string>

#include <tessella/attention.hpp>

namespace tessella {

// Memory of a run, 64-byte aligned, apart from all tensors of the run; one run at a time may use it, and another that
// begins meanwhile throws Error(invalid_argument); on a GPU see tessella.h. state must have been initialised by its
// plan.
using Workspace = tessella_workspace;

namespace detail {

// What plans of every operation have.
class PlanOfAny {
 public:
  std::string kernel() const { return tessella_plan_kernel(plan_.get()); }
  // The shape, the kernel, its workspace, and why each better kernel is not eligible.
  std::string explain() const { return tessella_plan_explain(plan_.get()); }

  // Bytes of state and scratch; the pointers are null.
  Workspace workspace_size() const {
    Workspace size{};
    check(tessella_plan_workspace(plan_.get(), &size.state_bytes, &size.scratch_bytes));
    return size;
  }
  void initialize(const Workspace& workspace, void* stream = nullptr) const {
    check(tessella_plan_initialize(plan_.get(), &workspace, stream));
  }

 protected:
  explicit PlanOfAny(tessella_plan* plan) : plan_(plan, tessella_plan_free) {}

  std::shared_ptr<tessella_plan> plan_;
};

}  // namespace detail

class Plan : public detail::PlanOfAny {
 public:
  // Runs with the options the plan was made from (views in its mask must still be alive).
  void run(const ForwardArgs& args, const Workspace& workspace, void* stream = nullptr) const {
    run(args, options_, &workspace, stream);
  }
  // Takes its workspace as plain calls do.
  void run(const ForwardArgs& args, void* stream = nullptr) const { run(args, options_, nullptr, stream); }
  // With another scale, window width, softcap, seed, or other mask tensors of the same kinds.
  void run(const ForwardArgs& args, const AttentionOptions& options, const Workspace* workspace,
           void* stream = nullptr) const {
    const detail::ForwardCall call(args, options);
    detail::check(tessella_plan_run(plan_.get(), &call.tagged, workspace, stream));
  }

  // Bytes of the schedule or the map of a mask that runs read; 0 where the plan was made without one.
  size_t schedule_bytes() const {
    size_t bytes = 0;
    detail::check(tessella_plan_schedule_size(plan_.get(), &bytes));
    return bytes;
  }
  // The same for one call, see tessella_plan_schedule_size_for.
  size_t schedule_bytes(const ForwardArgs& args) const {
    const detail::ForwardCall call(args, options_);
    size_t bytes = 0;
    detail::check(tessella_plan_schedule_size_for(plan_.get(), &call.tagged, &bytes));
    return bytes;
  }
  // Queues the making of args.schedule, for the runs of all layers of a model step; see tessella_plan_schedule.
  void make_schedule(const ForwardArgs& args, void* stream = nullptr) const { make_schedule(args, options_, stream); }
  void make_schedule(const ForwardArgs& args, const AttentionOptions& options, void* stream = nullptr) const {
    const detail::ForwardCall call(args, options);
    detail::check(tessella_plan_schedule(plan_.get(), &call.tagged, stream));
  }
  // Bytes of args.mask_map for one call.
  size_t mask_map_bytes(const ForwardArgs& args) const {
    const detail::ForwardCall call(args, options_);
    size_t bytes = 0;
    detail::check(tessella_plan_mask_map_size(plan_.get(), &call.tagged, &bytes));
    return bytes;
  }
  // Queues the making of args.mask_map, for all calls with this mask; see tessella_plan_mask_map.
  void make_mask_map(const ForwardArgs& args, void* stream = nullptr) const { make_mask_map(args, options_, stream); }
  void make_mask_map(const ForwardArgs& args, const AttentionOptions& options, void* stream = nullptr) const {
    const detail::ForwardCall call(args, options);
    detail::check(tessella_plan_mask_map(plan_.get(), &call.tagged, stream));
  }

 private:
  friend Plan plan_forward(const ForwardArgs& args, const AttentionOptions& options);
  Plan(tessella_plan* plan, const AttentionOptions& options) : PlanOfAny(plan), options_(options) {}

  AttentionOptions options_;
};

// For calls like this one; see tessella_plan_make. Keeps no pointer of args.
inline Plan plan_forward(const ForwardArgs& args, const AttentionOptions& options = {}) {
  const detail::ForwardCall call(args, options);
  tessella_plan* plan = nullptr;
  detail::check(tessella_plan_make(&call.tagged, &plan));
  return Plan(plan, options);
}

}  // namespace tessella
