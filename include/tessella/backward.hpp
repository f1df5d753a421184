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

// What comes in, d_out and d_lse, and what is written; views that are not set are absent and not computed.
struct Gradients {
  TensorView d_out = {};             // shape of out
  TensorView d_lse = {};             // shape of lse; absent: 0
  TensorView dq = {};                // shape of q, dtype of q or f32
  TensorView dk = {};                // shape of k, likewise
  TensorView dv = {};                // shape of v, likewise
  TensorView d_bias = {};            // shape of bias, its dtype or f32
  TensorView d_sink = {};            // (heads_q) f32
  TensorView d_alibi_slopes = {};    // shape of alibi_slopes, f32
  tessella_gradient accumulate = 0;  // these are added to what is there: TESSELLA_DQ | TESSELLA_DK and the like
};

namespace detail {

// The C structs of one call; they point into args, gradients and options.
struct BackwardCall {
  ForwardCall forward;
  tessella_backward_args args = TESSELLA_BACKWARD_ARGS_INIT;
  tessella_call tagged = {sizeof(tessella_call), TESSELLA_BACKWARD, &args, &forward.options};  // for plans, questions

  BackwardCall(const ForwardArgs& a, const Gradients& g, const AttentionOptions& o) : forward(a, o) {
    args.forward = &forward.args;
    args.d_out = pointer(g.d_out);
    args.d_lse = pointer(g.d_lse);
    args.dq = pointer(g.dq);
    args.dk = pointer(g.dk);
    args.dv = pointer(g.dv);
    args.d_bias = pointer(g.d_bias);
    args.d_sink = pointer(g.d_sink);
    args.d_alibi_slopes = pointer(g.d_alibi_slopes);
    args.accumulate = g.accumulate;
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
