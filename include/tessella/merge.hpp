// Merge: states of attention over disjoint sets of keys become the state over all of them.
//
//   ts::merge({{out_a, lse_a}, {out_b, lse_b}}, out, lse);
//
// Shapes, dtypes and meanings: tessella.h. Failures throw tessella::Error; nothing is touched then.
#pragma once

#include <cstdint>
#include <vector>

#include <tessella/arguments.hpp>
#include <tessella/plan.hpp>

namespace tessella {

// What forward gives for a set of keys.
struct State {
  TensorView out = {};  // (batch, seqlen, heads, head_dim)
  TensorView lse = {};  // (batch, heads, seqlen) f32, natural logarithm; -inf: no keys
};

namespace detail {

// The C structs of one call; they point into out, lse and the options.
struct MergeCall {
  tessella_merge_args args = TESSELLA_MERGE_ARGS_INIT;
  tessella_merge_options options = TESSELLA_MERGE_OPTIONS_INIT;
  std::vector<tessella_tensor> outs, lses;
  tessella_call tagged = {sizeof(tessella_call), TESSELLA_MERGE, &args, &options};  // for plans and questions

  MergeCall(const std::vector<State>& states, const TensorView& out, const TensorView& lse, const MergeOptions& o) {
    for (const State& state : states) {
      outs.push_back(state.out.c_tensor());
      lses.push_back(state.lse.c_tensor());
    }
    args.outs = outs.data();
    args.lses = lses.data();
    args.num_states = static_cast<int32_t>(states.size());
    args.out = pointer(out);
    args.lse = pointer(lse);
    fill(options, o);
  }
  MergeCall(const MergeCall&) = delete;
  MergeCall& operator=(const MergeCall&) = delete;
};

}  // namespace detail

// Writes out, and lse where present. CPU: returns when done. GPU: work is queued on the stream.
inline void merge(const std::vector<State>& states, const TensorView& out, const TensorView& lse = {},
                  const MergeOptions& options = {}, void* stream = nullptr) {
  const detail::MergeCall call(states, out, lse, options);
  detail::check(tessella_merge(&call.args, &call.options, stream));
}

// Compares `num_rows` sampled rows of out, and of lse where present, with the float64 reference.
inline tessella_check_report check_merge(const std::vector<State>& states, const TensorView& out, const TensorView& lse,
                                         int64_t num_rows, uint64_t seed = 0) {
  const detail::MergeCall call(states, out, lse, {});
  tessella_check_report report = TESSELLA_CHECK_REPORT_INIT;
  detail::check(tessella_check(&call.tagged, num_rows, seed, &report));
  return report;
}

class MergePlan : public detail::PlanOfAny {
 public:
  void run(const std::vector<State>& states, const TensorView& out, const TensorView& lse, const Workspace& workspace,
           void* stream = nullptr) const {
    run(states, out, lse, &workspace, stream);
  }
  // Takes its workspace as plain calls do.
  void run(const std::vector<State>& states, const TensorView& out, const TensorView& lse,
           void* stream = nullptr) const {
    run(states, out, lse, nullptr, stream);
  }

 private:
  friend MergePlan plan_merge(const std::vector<State>& states, const TensorView& out, const TensorView& lse,
                              const MergeOptions& options);
  MergePlan(tessella_plan* plan, const MergeOptions& options) : PlanOfAny(plan), options_(options) {}
  void run(const std::vector<State>& states, const TensorView& out, const TensorView& lse, const Workspace* workspace,
           void* stream) const {
    MergeOptions options = options_;
    options.max_seqlen = 0;  // a bound of the plan
    const detail::MergeCall call(states, out, lse, options);
    detail::check(tessella_plan_run(plan_.get(), &call.tagged, workspace, stream));
  }

  MergeOptions options_;
};

// For calls like this one; see tessella_plan_make. Keeps no pointer of the tensors.
inline MergePlan plan_merge(const std::vector<State>& states, const TensorView& out, const TensorView& lse = {},
                            const MergeOptions& options = {}) {
  const detail::MergeCall call(states, out, lse, options);
  tessella_plan* plan = nullptr;
  detail::check(tessella_plan_make(&call.tagged, &plan));
  return MergePlan(plan, options);
}

}  // namespace tessella
