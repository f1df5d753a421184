// Linear: few rows times a matrix of weights, and what comes before and after: a bias, SwiGLU, a residual.
//
//   ts::linear({.x = x, .w = w, .bias = bias, .residual = hidden, .out = hidden}, {}, stream);
//   ts::linear({.x = x, .w = gate_and_up, .out = inner}, {.activation = ts::Activation::swiglu}, stream);
//
// Shapes, dtypes and meanings: tessella.h. Failures throw tessella::Error; nothing is touched then.
#pragma once

#include <cstdint>

#include <tessella/arguments.hpp>
#include <tessella/plan.hpp>

namespace tessella {

namespace detail {

// The C structs of one call; they point into args and the options.
struct LinearCall {
  tessella_linear_args args = TESSELLA_LINEAR_ARGS_INIT;
  tessella_linear_options options = TESSELLA_LINEAR_OPTIONS_INIT;
  tessella_call tagged = {sizeof(tessella_call), TESSELLA_LINEAR, &args, &options};  // for plans and questions

  LinearCall(const LinearArgs& a, const LinearOptions& o) {
    fill(args, a);
    fill(options, o);
  }
  LinearCall(const LinearCall&) = delete;
  LinearCall& operator=(const LinearCall&) = delete;
};

}  // namespace detail

// Writes out. CPU: returns when done. GPU: work is queued on the stream.
inline void linear(const LinearArgs& args, const LinearOptions& options = {}, void* stream = nullptr) {
  const detail::LinearCall call(args, options);
  detail::check(tessella_linear(&call.args, &call.options, stream));
}

// Compares `num_rows` sampled rows of out with the float64 reference: of each at most 1024 columns, with 0 every column
// of every row. residual is memory of its own: a call with residual = out has written over what it read.
inline tessella_check_report check_linear(const LinearArgs& args, const LinearOptions& options, int64_t num_rows,
                                          uint64_t seed = 0) {
  const detail::LinearCall call(args, options);
  tessella_check_report report = TESSELLA_CHECK_REPORT_INIT;
  detail::check(tessella_check(&call.tagged, num_rows, seed, &report));
  return report;
}

class LinearPlan : public detail::PlanOfAny {
 public:
  // Takes its workspace as plain calls do where none is given.
  void run(const LinearArgs& args, void* stream = nullptr) const { run(args, nullptr, stream); }
  void run(const LinearArgs& args, const Workspace& workspace, void* stream = nullptr) const {
    run(args, &workspace, stream);
  }

 private:
  friend LinearPlan plan_linear(const LinearArgs& args, const LinearOptions& options);
  LinearPlan(tessella_plan* plan, const LinearOptions& options) : PlanOfAny(plan), options_(options) {
    options_.max_rows = 0;  // a bound of the plan
  }
  void run(const LinearArgs& args, const Workspace* workspace, void* stream) const {
    const detail::LinearCall call(args, options_);
    detail::check(tessella_plan_run(plan_.get(), &call.tagged, workspace, stream));
  }

  LinearOptions options_;
};

// For calls like this one; see tessella_plan_make. Keeps no pointer of args.
inline LinearPlan plan_linear(const LinearArgs& args, const LinearOptions& options = {}) {
  const detail::LinearCall call(args, options);
  tessella_plan* plan = nullptr;
  detail::check(tessella_plan_make(&call.tagged, &plan));
  return LinearPlan(plan, options);
}

}  // namespace tessella
