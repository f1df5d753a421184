// Append: new keys and values go into a cache, with rotary embeddings.
//
//   ts::append({.k_new = k_new, .v_new = v_new, .k = k_pages, .v = v_pages, .seqlens_kv = seqlens, .page_table = table,
//               .rotary_cos = cos, .rotary_sin = sin}, {}, stream);
//
// Shapes, dtypes and meanings: tessella.h. Failures throw tessella::Error; nothing is touched then.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include <tessella/plan.hpp>
#include <tessella/tensor.hpp>

namespace tessella {

struct AppendArgs {
  TensorView k_new = {};  // (batch, new, heads_kv, head_dim), packed (total, heads_kv, head_dim)
  TensorView v_new = {};
  TensorView k = {};  // (slots, seqlen_kv, heads_kv, head_dim), or pools (num_pages, page_size, heads_kv, head_dim)
  TensorView v = {};
  TensorView seqlens_kv = {};  // (batch) i32, the new rows included
  TensorView seqlens_new = {};
  TensorView cu_seqlens_new = {};
  TensorView page_table = {};
  TensorView cache_batch_idx = {};
  TensorView leftpad_kv = {};
  TensorView rotary_cos = {};  // (positions, rotary_dim / 2)
  TensorView rotary_sin = {};
  TensorView rotary_offsets = {};
  TensorView q = {};
  TensorView q_out = {};
  TensorView k_scale = {};  // of quantised caches: (slots or num_pages, 1 or rows, heads_kv) f32
  TensorView v_scale = {};
};

struct AppendOptions {
  bool rotary_interleaved = false;  // columns 2j and 2j + 1 turn together, else j and j + rotary_dim / 2
  int num_sms = 0;                  // GPU
  int num_threads = 0;              // CPU; 0 = all that the process may use
  bool check_device_values = false;
  int64_t max_seqlen_new = 0;
  int64_t scale_block = 0;  // 0: the scales of quantised caches are given; 1: those of the new rows are computed
  std::string kernel = {};  // a name of `tessella kernels`; "" = automatic
  const tessella_allocator* allocator = nullptr;
  const std::atomic<int32_t>* cancel = nullptr;  // once not 0, the call throws Error(cancelled); see tessella.h
};

namespace detail {

// The C structs of one call; they point into args and the options.
struct AppendCall {
  tessella_append_args args = TESSELLA_APPEND_ARGS_INIT;
  tessella_append_options options = TESSELLA_APPEND_OPTIONS_INIT;
  tessella_call tagged = {sizeof(tessella_call), TESSELLA_APPEND, &args, &options};  // for plans and questions

  AppendCall(const AppendArgs& a, const AppendOptions& o) {
    const auto pointer = [](const TensorView& view) { return view.is_present() ? &view.c_tensor() : nullptr; };
    args.k_new = pointer(a.k_new);
    args.v_new = pointer(a.v_new);
    args.k = pointer(a.k);
    args.v = pointer(a.v);
    args.seqlens_kv = pointer(a.seqlens_kv);
    args.seqlens_new = pointer(a.seqlens_new);
    args.cu_seqlens_new = pointer(a.cu_seqlens_new);
    args.page_table = pointer(a.page_table);
    args.cache_batch_idx = pointer(a.cache_batch_idx);
    args.leftpad_kv = pointer(a.leftpad_kv);
    args.rotary_cos = pointer(a.rotary_cos);
    args.rotary_sin = pointer(a.rotary_sin);
    args.rotary_offsets = pointer(a.rotary_offsets);
    args.q = pointer(a.q);
    args.q_out = pointer(a.q_out);
    args.k_scale = pointer(a.k_scale);
    args.v_scale = pointer(a.v_scale);
    options.rotary_interleaved = o.rotary_interleaved ? 1 : 0;
    options.num_sms = o.num_sms;
    options.num_threads = o.num_threads;
    options.check_device_values = o.check_device_values ? 1 : 0;
    options.max_seqlen_new = o.max_seqlen_new;
    options.scale_block = o.scale_block;
    options.kernel = o.kernel.empty() ? nullptr : o.kernel.c_str();
    options.allocator = o.allocator;
    options.cancel = reinterpret_cast<const int32_t*>(o.cancel);
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
