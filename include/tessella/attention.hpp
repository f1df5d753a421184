// Attention: out = softmax(scale * q . k^T, masked) . v, exact, in linear memory.
//
//   ts::forward({.q = q, .k = k, .v = v, .out = out}, {.mask = ts::Mask::causal()});
//
// Shapes, dtypes and meanings of every field: tessella.h. Failures throw tessella::Error; nothing is touched then.
#pragma once

#include <cstdint>
#include <vector>

#include <tessella/arguments.hpp>

namespace tessella {

namespace detail {

// The C structs of one call; they point into args and options.
struct ForwardCall {
  tessella_forward_args args = TESSELLA_FORWARD_ARGS_INIT;
  tessella_attention_options options = TESSELLA_ATTENTION_OPTIONS_INIT;
  std::vector<tessella_tensor> mod_args;
  tessella_call tagged = {sizeof(tessella_call), TESSELLA_FORWARD, &args, &options};  // for plans and questions

  ForwardCall(const ForwardArgs& a, const AttentionOptions& o) {
    fill(args, a);
    o.mask.fill(args);
    for (const TensorView& array : a.mod_args) mod_args.push_back(array.c_tensor());
    args.mod_args = mod_args.data();
    args.num_mod_args = static_cast<int32_t>(mod_args.size());
    fill(options, o);
  }
  ForwardCall(const ForwardCall&) = delete;
  ForwardCall& operator=(const ForwardCall&) = delete;
};

}  // namespace detail

// Writes args.out, and args.lse where present. CPU: returns when done. GPU: work is queued on the stream.
inline void forward(const ForwardArgs& args, const AttentionOptions& options = {}, void* stream = nullptr) {
  const detail::ForwardCall call(args, options);
  detail::check(tessella_forward(&call.args, &call.options, stream));
}

// Compares `num_rows` sampled rows of args.out, and of args.lse where present, with the float64 reference; 0 = all.
inline tessella_check_report check_forward(const ForwardArgs& args, const AttentionOptions& options, int64_t num_rows,
                                           uint64_t seed = 0) {
  const detail::ForwardCall call(args, options);
  tessella_check_report report = TESSELLA_CHECK_REPORT_INIT;
  detail::check(tessella_check(&call.tagged, num_rows, seed, &report));
  return report;
}

}  // namespace tessella

#include <tessella/plan.hpp>
