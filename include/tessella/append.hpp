// Append: new keys and values go into a cache, with rotary embeddings.
//
//   ts::append({.k_new = k_new, .v_new = v_new, .k = k_pages, .v = v_pages, .seqlens_kv = seqlens, .page_table = table,
//               .rotary_cos = cos, .rotary_sin = sin}, {}, stream);
//
// Shapes, dtypes and meanings: tessella.h. Failures throw tessella::Error; nothing is touched then.
#pragma once

#include <cstdint>

#include <tessella/arguments.hpp>
#include <tessella/plan.hpp>

namespace tessella {

namespace detail {

// The C structs of one call; they point into args and the options.
struct AppendCall {
  tessella_append_args args = TESSELLA_APPEND_ARGS_INIT;
  tessella_append_options options = TESSELLA_APPEND_OPTIONS_INIT;
  tessella_call tagged = {sizeof(tessella_call), TESSELLA_APPEND, &args, &options};  // for plans and questions

  AppendCall(const AppendArgs& a, const AppendOptions& o) {
    fill(args, a);
    fill(options, o);
  }
  AppendCall(const AppendCall&) = delete;
  AppendCall& operator=(const AppendCall&) = delete;
};

}  // namespace detail

// Writes the new rows of k and v, and q_out where present. CPU: returns when done. GPU: work is queued on the stream.
inline void append(const AppendArgs& args, const AppendOptions& options = {}, void* stream = nullptr) {
  const detail::AppendCall call(args, options);
  detail::check(tessella_append(&call.args, &call.options, stream));
}

// Compares `num_rows` sampled rows of each of k, v and q_out with the float64 reference.
inline tessella_check_report check_append(const AppendArgs& args, const AppendOptions& options, int64_t num_rows,
                                          uint64_t seed = 0) {
  const detail::AppendCall call(args, options);
  tessella_check_report report = TESSELLA_CHECK_REPORT_INIT;
  detail::check(tessella_check(&call.tagged, num_rows, seed, &report));
  return report;
}

class AppendPlan : public detail::PlanOfAny {
 public:
  // Takes its workspace as plain calls do where none is given.
  void run(const AppendArgs& args, void* stream = nullptr) const { run(args, nullptr, stream); }
  void run(const AppendArgs& args, const Workspace& workspace, void* stream = nullptr) const {
    run(args, &workspace, stream);
  }

 private:
  friend AppendPlan plan_append(const AppendArgs& args, const AppendOptions& options);
  AppendPlan(tessella_plan* plan, const AppendOptions& options) : PlanOfAny(plan), options_(options) {}
  void run(const AppendArgs& args, const Workspace* workspace, void* stream) const {
    AppendOptions options = options_;
    options.max_seqlen_new = 0;  // a bound of the plan
    const detail::AppendCall call(args, options);
    detail::check(tessella_plan_run(plan_.get(), &call.tagged, workspace, stream));
  }

  AppendOptions options_;
};

// For calls like this one; see tessella_plan_make. Keeps no pointer of args.
inline AppendPlan plan_append(const AppendArgs& args, const AppendOptions& options = {}) {
  const detail::AppendCall call(args, options);
  tessella_plan* plan = nullptr;
  detail::check(tessella_plan_make(&call.tagged, &plan));
  return AppendPlan(plan, options);
}

}  // namespace tessella
