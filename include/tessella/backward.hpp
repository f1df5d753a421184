// Backward: the gradients of a call of forward, by recomputation of its scores, in linear memory.
//
//   ts::backward({.q = q, .k = k, .v = v, .out = out, .lse = lse}, {.d_out = d_out, .dq = dq, .dk = dk, .dv = dv},
//                {.mask = ts::Mask::causal()});
//
// The arguments are those of forward with the out and lse that it wrote, the options those it had. Shapes, dtypes and
// meanings: tessella.h. Failures throw tessella::Error; nothing is touched then.
#pragma once

#include <cstdint>

#include <tessella/plan.hpp>

namespace tessella {

namespace detail {

// The C structs of one call; they point into args, gradients and options.
struct BackwardCall {
  ForwardCall forward;
  tessella_backward_args args = TESSELLA_BACKWARD_ARGS_INIT;
  tessella_call tagged = {sizeof(tessella_call), TESSELLA_BACKWARD, &args, &forward.options};  // for plans, questions

  BackwardCall(const ForwardArgs& a, const Gradients& g, const AttentionOptions& o) : forward(a, o) {
    args.forward = &forward.args;
    fill(args, g);
  }
  BackwardCall(const BackwardCall&) = delete;
  BackwardCall& operator=(const BackwardCall&) = delete;
};

}  // namespace detail

// Writes the gradients that are set. CPU: returns when done. GPU: work is queued on the stream.
inline void backward(const ForwardArgs& args, const Gradients& gradients, const AttentionOptions& options = {},
                     void* stream = nullptr) {
  const detail::BackwardCall call(args, gradients, options);
  detail::check(tessella_backward(&call.args, &call.forward.options, stream));
}

// Compares the gradients of about `num_rows` sampled queries, and of the keys of their heads, with the reference in
// double; 0 = all. out and lse widen no tolerance: gradients of another forward than that of the options fail. What was
// accumulated cannot be checked.
inline tessella_check_report check_backward(const ForwardArgs& args, const Gradients& gradients,
                                            const AttentionOptions& options, int64_t num_rows, uint64_t seed = 0) {
  const detail::BackwardCall call(args, gradients, options);
  tessella_check_report report = TESSELLA_CHECK_REPORT_INIT;
  detail::check(tessella_check(&call.tagged, num_rows, seed, &report));
  return report;
}

class BackwardPlan : public detail::PlanOfAny {
 public:
  // Runs with the options the plan was made from (views in its mask must still be alive).
  void run(const ForwardArgs& args, const Gradients& gradients, const Workspace& workspace,
           void* stream = nullptr) const {
    run(args, gradients, options_, &workspace, stream);
  }
  // Takes its workspace as plain calls do.
  void run(const ForwardArgs& args, const Gradients& gradients, void* stream = nullptr) const {
    run(args, gradients, options_, nullptr, stream);
  }
  // With another scale, window width, softcap, seed, or other mask tensors of the same kinds.
  void run(const ForwardArgs& args, const Gradients& gradients, const AttentionOptions& options,
           const Workspace* workspace, void* stream = nullptr) const {
    const detail::BackwardCall call(args, gradients, options);
    detail::check(tessella_plan_run(plan_.get(), &call.tagged, workspace, stream));
  }

 private:
  friend BackwardPlan plan_backward(const ForwardArgs& args, const Gradients& gradients,
                                    const AttentionOptions& options);
  BackwardPlan(tessella_plan* plan, const AttentionOptions& options) : PlanOfAny(plan), options_(options) {}

  AttentionOptions options_;
};

// For calls like this one; see tessella_plan_make. Keeps no pointer of the tensors.
inline BackwardPlan plan_backward(const ForwardArgs& args, const Gradients& gradients,
                                  const AttentionOptions& options = {}) {
  const detail::BackwardCall call(args, gradients, options);
  tessella_plan* plan = nullptr;
  detail::check(tessella_plan_make(&call.tagged, &plan));
  return BackwardPlan(plan, options);
}

}  // namespace tessella
