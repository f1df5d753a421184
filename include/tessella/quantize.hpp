// Quantize: rows of q, k or v become elements of 8 bits beside scales, and dequantize makes numbers of them again.
//
//   ts::quantize({.x = k, .out = k8, .scale = k_scale, .mean = k_mean}, {.scale_block = 128, .hadamard = true},
//   stream); ts::quantize({.x = q, .out = q8, .scale = q_scale, .k_mean = k_mean, .lse_shift = shift},
//                {.scale_block = 128, .hadamard = true}, stream);
//   ts::quantize({.x = v, .out = ts::view_transposed(v8, ts::f8e4m3fn, {batch, heads, head_dim, padded}),
//                 .scale = v_scale}, {}, stream);
//
// Shapes, dtypes and meanings: tessella.h. Failures throw tessella::Error; nothing is touched then.
#pragma once

#include <cstdint>

#include <tessella/arguments.hpp>
#include <tessella/plan.hpp>

namespace tessella {

// (batch, heads, head_dim, rows in whole tiles) memory, as quantize writes it and dequantize reads it.
template <typename Data>
TensorView view_transposed(Data* data, DType dtype, std::initializer_list<int64_t> shape, Device device = {}) {
  tessella_tensor tensor = view(data, dtype, shape, {}, device).c_tensor();
  tensor.flags |= TESSELLA_TRANSPOSED;
  return TensorView(tensor);
}

namespace detail {

// The C structs of one call; they point into args and the options.
struct QuantizeCall {
  tessella_quantize_args args = TESSELLA_QUANTIZE_ARGS_INIT;
  tessella_quantize_options options = TESSELLA_QUANTIZE_OPTIONS_INIT;
  tessella_call tagged = {sizeof(tessella_call), TESSELLA_QUANTIZE, &args, &options};  // for plans and questions

  QuantizeCall(const QuantizeArgs& a, const QuantizeOptions& o) {
    fill(args, a);
    fill(options, o);
  }
  QuantizeCall(const QuantizeCall&) = delete;
  QuantizeCall& operator=(const QuantizeCall&) = delete;
};
struct DequantizeCall {
  tessella_dequantize_args args = TESSELLA_DEQUANTIZE_ARGS_INIT;
  tessella_dequantize_options options = TESSELLA_DEQUANTIZE_OPTIONS_INIT;
  tessella_call tagged = {sizeof(tessella_call), TESSELLA_DEQUANTIZE, &args, &options};

  DequantizeCall(const DequantizeArgs& a, const DequantizeOptions& o) {
    fill(args, a);
    fill(options, o);
  }
  DequantizeCall(const DequantizeCall&) = delete;
  DequantizeCall& operator=(const DequantizeCall&) = delete;
};

template <typename Call>
tessella_check_report check_of(const Call& call, int64_t num_rows, uint64_t seed) {
  tessella_check_report report = TESSELLA_CHECK_REPORT_INIT;
  check(tessella_check(&call.tagged, num_rows, seed, &report));
  return report;
}

}  // namespace detail

// Writes out, scales that are not given, and mean or lse_shift where present. CPU: returns when done. GPU: work is
// queued on the stream.
inline void quantize(const QuantizeArgs& args, const QuantizeOptions& options = {}, void* stream = nullptr) {
  const detail::QuantizeCall call(args, options);
  detail::check(tessella_quantize(&call.args, &call.options, stream));
}

inline void dequantize(const DequantizeArgs& args, const DequantizeOptions& options = {}, void* stream = nullptr) {
  const detail::DequantizeCall call(args, options);
  detail::check(tessella_dequantize(&call.args, &call.options, stream));
}

// Compare `num_rows` sampled rows, and their scales, means and shifts, with the float64 reference.
inline tessella_check_report check_quantize(const QuantizeArgs& args, const QuantizeOptions& options, int64_t num_rows,
                                            uint64_t seed = 0) {
  return detail::check_of(detail::QuantizeCall(args, options), num_rows, seed);
}
inline tessella_check_report check_dequantize(const DequantizeArgs& args, const DequantizeOptions& options,
                                              int64_t num_rows, uint64_t seed = 0) {
  return detail::check_of(detail::DequantizeCall(args, options), num_rows, seed);
}

namespace detail {

template <typename Call, typename Args, typename Options>
class QuantizingPlan : public PlanOfAny {
 public:
  QuantizingPlan(tessella_plan* plan, const Options& options) : PlanOfAny(plan), options_(options) {
    options_.max_seqlen = 0;  // a bound of the plan
  }
  // Takes its workspace as plain calls do where none is given.
  void run(const Args& args, void* stream = nullptr) const { run(args, nullptr, stream); }
  void run(const Args& args, const Workspace& workspace, void* stream = nullptr) const {
    run(args, &workspace, stream);
  }

 private:
  void run(const Args& args, const Workspace* workspace, void* stream) const {
    const Call call(args, options_);
    check(tessella_plan_run(plan_.get(), &call.tagged, workspace, stream));
  }

  Options options_;
};

template <typename Call, typename Args, typename Options>
QuantizingPlan<Call, Args, Options> plan_of(const Args& args, const Options& options) {
  const Call call(args, options);
  tessella_plan* plan = nullptr;
  check(tessella_plan_make(&call.tagged, &plan));
  return {plan, options};
}

}  // namespace detail

using QuantizePlan = detail::QuantizingPlan<detail::QuantizeCall, QuantizeArgs, QuantizeOptions>;
using DequantizePlan = detail::QuantizingPlan<detail::DequantizeCall, DequantizeArgs, DequantizeOptions>;

// For calls like this one; see tessella_plan_make. Keep no pointer of args.
inline QuantizePlan plan_quantize(const QuantizeArgs& args, const QuantizeOptions& options = {}) {
  return detail::plan_of<detail::QuantizeCall>(args, options);
}
inline DequantizePlan plan_dequantize(const DequantizeArgs& args, const DequantizeOptions& options = {}) {
  return detail::plan_of<detail::DequantizeCall>(args, options);
}

}  // namespace tessella
