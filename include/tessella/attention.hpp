// Attention: out = softmax(scale * q . k^T, masked) . v, exact, in linear memory.
//
//   ts::forward({.q = q, .k = k, .v = v, .out = out}, {.mask = ts::Mask::causal()});
//
// Shapes, dtypes and meanings of every field: tessella.h. Failures throw tessella::Error; nothing is touched then.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <tessella/mask.hpp>
#include <tessella/tensor.hpp>

namespace tessella {

// Every pointer of a call; views that are not set are absent.
struct ForwardArgs {
  TensorView q = {};                                 // (batch, seqlen_q, heads_q, head_dim_qk)
  TensorView k = {};                                 // (batch, seqlen_kv, heads_kv, head_dim_qk)
  TensorView v = {};                                 // (batch, seqlen_kv, heads_kv, head_dim_v)
  TensorView out = {};                               // (batch, seqlen_q, heads_q, head_dim_v), dtype of q or f32
  TensorView lse = {};                               // (batch, heads_q, seqlen_q) f32, natural logarithm
  TensorView seqlens_q = {}, seqlens_kv = {};        // (batch) i32
  TensorView cu_seqlens_q = {}, cu_seqlens_kv = {};  // (batch + 1) i32: packed variable length
  TensorView leftpad_kv = {};                        // (batch) i32
  TensorView page_table = {};                        // (batch, pages) i32: k and v are pools of pages
  TensorView bias = {};                              // broadcasts to (batch, heads_q, seqlen_q, seqlen_kv)
  TensorView alibi_slopes = {};                      // (heads_q) or (batch, heads_q) f32
  TensorView sink = {};                              // (heads_q) f32
  TensorView seed = {}, offset = {};                 // (1) i64, where they live in memory
  std::vector<TensorView> score_args = {};           // at most 8 dense arrays that the texts of score and keep read
};

// The body of float score_mod(float score, int b, int h, int q, int k, float q_minus_k, const Arrays& arrays); see
// tessella.h.
struct Score {
  std::string text = {};  // "" = absent
  std::string gradient_text = {};
};

// What is computed. Views in `mask` must stay alive as long as the options are used.
struct AttentionOptions {
  Mask mask = {};
  std::optional<float> scale = {};  // 1 / sqrt(head_dim_qk)
  float softcap = 0;                // 0 = off
  float dropout = 0;
  uint64_t seed = 0;
  uint64_t offset = 0;
  DType out_dtype = DType::none;
  int num_splits = 0;
  std::string kernel = {};  // a name of `tessella kernels`; "" = automatic
  int num_sms = 0;          // GPU
  int num_threads = 0;      // CPU; 0 = all that the process may use
  bool deterministic = false;
  bool batch_invariant = false;  // a row's bits do not depend on batch, lengths or how queries are cut into calls
  bool check_device_values = false;
  int64_t max_seqlen_q = 0;
  int64_t max_seqlen_kv = 0;
  Score score = {};       // GPU
  std::string keep = {};  // the body of bool mask_mod(int b, int h, int q, int k, const Arrays& arrays); GPU
  const tessella_allocator* allocator = nullptr;
};

namespace detail {

// The C structs of one call; they point into args and options.
struct ForwardCall {
  tessella_forward_args args = TESSELLA_FORWARD_ARGS_INIT;
  tessella_attention_options options = TESSELLA_ATTENTION_OPTIONS_INIT;
  std::vector<tessella_tensor> score_args;

  ForwardCall(const ForwardArgs& a, const AttentionOptions& o) {
    args.q = pointer(a.q);
    args.k = pointer(a.k);
    args.v = pointer(a.v);
    args.out = pointer(a.out);
    args.lse = pointer(a.lse);
    args.seqlens_q = pointer(a.seqlens_q);
    args.seqlens_kv = pointer(a.seqlens_kv);
    args.cu_seqlens_q = pointer(a.cu_seqlens_q);
    args.cu_seqlens_kv = pointer(a.cu_seqlens_kv);
    args.leftpad_kv = pointer(a.leftpad_kv);
    args.page_table = pointer(a.page_table);
    args.bias = pointer(a.bias);
    args.alibi_slopes = pointer(a.alibi_slopes);
    args.sink = pointer(a.sink);
    args.seed = pointer(a.seed);
    args.offset = pointer(a.offset);
    for (const TensorView& array : a.score_args) score_args.push_back(array.c_tensor());
    args.mod_args = score_args.data();
    args.num_mod_args = static_cast<int32_t>(score_args.size());
    o.mask.fill(args);
    o.mask.fill(options);
    options.scale = o.scale.value_or(NAN);
    options.softcap = o.softcap;
    options.dropout = o.dropout;
    options.seed = o.seed;
    options.offset = o.offset;
    options.out_dtype = static_cast<tessella_dtype>(o.out_dtype);
    options.num_splits = o.num_splits;
    options.kernel = text(o.kernel);
    options.num_sms = o.num_sms;
    options.num_threads = o.num_threads;
    options.deterministic = o.deterministic ? 1 : 0;
    options.batch_invariant = o.batch_invariant ? 1 : 0;
    options.check_device_values = o.check_device_values ? 1 : 0;
    options.max_seqlen_q = o.max_seqlen_q;
    options.max_seqlen_kv = o.max_seqlen_kv;
    options.score_mod = text(o.score.text);
    options.score_mod_gradient = text(o.score.gradient_text);
    options.mask_mod = text(o.keep);
    options.allocator = o.allocator;
  }
  ForwardCall(const ForwardCall&) = delete;
  ForwardCall& operator=(const ForwardCall&) = delete;

 private:
  static const char* text(const std::string& text) { return text.empty() ? nullptr : text.c_str(); }
  static const tessella_tensor* pointer(const TensorView& view) {
    return view.is_present() ? &view.c_tensor() : nullptr;
  }
};

}  // namespace detail

// Writes args.out, and args.lse where present. CPU: returns when done. GPU: work is queued on the stream.
inline void forward(const ForwardArgs& args, const AttentionOptions& options = {}, void* stream = nullptr) {
  const detail::ForwardCall call(args, options);
  detail::check(tessella_forward(&call.args, &call.options, stream));
}

// Compares `num_rows` sampled rows of args.out with the reference in double.
inline tessella_check_report check_forward(const ForwardArgs& args, const AttentionOptions& options, int64_t num_rows,
                                           uint64_t seed = 0) {
  const detail::ForwardCall call(args, options);
  tessella_check_report report = TESSELLA_CHECK_REPORT_INIT;
  detail::check(tessella_check_forward(&call.args, &call.options, num_rows, seed, &report));
  return report;
}

}  // namespace tessella

#include <tessella/plan.hpp>
