// Attention: out = softmax(scale * q . k^T, masked) . v, exact, in linear memory.
//
//   ts::forward({.q = q, .k = k, .v = v, .out = out}, {.mask = ts::Mask::causal()});
//
// Shapes, dtypes and meanings of every field: tessella.h. Failures throw tessella::Error; nothing is touched then.
#pragma once

#include <atomic>
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
  TensorView q = {};                                    // (batch, seqlen_q, heads_q, head_dim_qk)
  TensorView k = {};                                    // (batch, seqlen_kv, heads_kv, head_dim_qk)
  TensorView v = {};                                    // (batch, seqlen_kv, heads_kv, head_dim_v)
  TensorView out = {};                                  // (batch, seqlen_q, heads_q, head_dim_v), dtype of q or f32
  TensorView lse = {};                                  // (batch, heads_q, seqlen_q) f32, natural logarithm
  TensorView q_scale = {}, k_scale = {}, v_scale = {};  // (batch or page, ceil(rows / scale_block), heads) f32, factors
  TensorView out_scale = {};                            // likewise: out is divided by it
  TensorView amax = {};                                 // likewise, written: the largest |result|
  TensorView seqlens_q = {}, seqlens_kv = {};           // (batch) i32
  TensorView cu_seqlens_q = {}, cu_seqlens_kv = {};     // (batch + 1) i32: packed variable length
  TensorView leftpad_kv = {};                           // (batch) i32: rows of k and v that are padding, in front
  TensorView page_table = {};                           // (batch, pages) i32: k and v are pools of pages
  TensorView cache_batch_idx = {};                      // (batch) i32: the batch of k and v that a sequence reads
  TensorView draft_mask = {};                           // (batch or 1, seqlen_q, seqlen_q) bool: what queries see of
                                                        // the last keys, which are theirs
  TensorView schedule = {};                             // (n) i32 on the GPU, by Plan::make_schedule: where keys are
                                                        // split, or the map of element masks
  TensorView bias = {};                                 // broadcasts to (batch, heads_q, seqlen_q, seqlen_kv); beside
                                                        // cu_seqlens those of the longest sequence, see tessella.h
  TensorView alibi_slopes = {};                         // (heads_q) or (batch, heads_q) f32
  TensorView sink = {};                                 // (heads_q) f32
  TensorView seed = {}, offset = {};                    // (1) i64, where they live in memory
  std::vector<TensorView> mod_args = {};                // at most 8 dense arrays that score_mod and mask_mod read
};

// C++ source that modifies scores; see tessella.h.
struct ScoreMod {
  std::string value = {};  // body of float score_mod(float score, int b, int h, int q, int k, float q_minus_k,
                           // const Arrays& arrays); "" = absent
  std::string gradient = {};
};

enum class Deterministic : int32_t { automatic = 0, required, not_needed };
enum class QueryClass : int32_t { automatic = 0, few, many };

// What is computed. Views in `mask` must stay alive as long as the options are used.
struct AttentionOptions {
  Mask mask = {};
  std::optional<float> scale = {};  // 1 / sqrt(head_dim_qk)
  float softcap = 0;                // 0 = off
  float dropout = 0;                // probability of a zero, in multiples of 1 / 65536
  uint64_t seed = 0;                // of dropout: calls with the same seed and offset drop the same entries
  uint64_t offset = 0;
  int64_t first_batch = 0, first_head = 0, first_query = 0, first_key = 0;  // where a slice begins in the whole
  int64_t whole_heads_q = 0;                                                // of a slice of heads; 0 = heads_q
  ScoreMod score_mod = {};                                                  // GPU
  std::string mask_mod =
      {};                   // C++ source, body of bool mask_mod(int b, int h, int q, int k, const Arrays& arrays); GPU
  int64_t scale_block = 0;  // rows that have one entry of a scale; 0 = all
  DType out_dtype = DType::none;
  Deterministic deterministic = Deterministic::automatic;
  bool batch_invariant = false;  // a row's bits do not depend on batch, lengths or how queries are cut into calls
  QueryClass query_class = QueryClass::automatic;  // with batch_invariant
  int num_splits = 0;
  int num_sms = 0;      // GPU
  int num_threads = 0;  // CPU; 0 = all that the process may use
  bool check_device_values = false;
  int64_t max_seqlen_q = 0;
  int64_t max_seqlen_kv = 0;
  std::string kernel = {};  // a name of `tessella kernels`; "" = automatic
  const tessella_allocator* allocator = nullptr;
  const std::atomic<int32_t>* cancel = nullptr;  // once not 0, the call throws Error(cancelled); see tessella.h
  bool cache_settled = false;  // a promise: the kernel just before in the stream writes nothing that is read, but q
};

namespace detail {

static_assert(sizeof(std::atomic<int32_t>) == sizeof(int32_t) && std::atomic<int32_t>::is_always_lock_free);

inline const tessella_tensor* pointer(const TensorView& view) { return view.is_present() ? &view.c_tensor() : nullptr; }

// The C structs of one call; they point into args and options.
struct ForwardCall {
  tessella_forward_args args = TESSELLA_FORWARD_ARGS_INIT;
  tessella_attention_options options = TESSELLA_ATTENTION_OPTIONS_INIT;
  std::vector<tessella_tensor> mod_args;
  tessella_call tagged = {sizeof(tessella_call), TESSELLA_FORWARD, &args, &options};  // for plans and questions

  ForwardCall(const ForwardArgs& a, const AttentionOptions& o) {
    args.q = pointer(a.q);
    args.k = pointer(a.k);
    args.v = pointer(a.v);
    args.out = pointer(a.out);
    args.lse = pointer(a.lse);
    args.q_scale = pointer(a.q_scale);
    args.k_scale = pointer(a.k_scale);
    args.v_scale = pointer(a.v_scale);
    args.out_scale = pointer(a.out_scale);
    args.amax = pointer(a.amax);
    args.seqlens_q = pointer(a.seqlens_q);
    args.seqlens_kv = pointer(a.seqlens_kv);
    args.cu_seqlens_q = pointer(a.cu_seqlens_q);
    args.cu_seqlens_kv = pointer(a.cu_seqlens_kv);
    args.leftpad_kv = pointer(a.leftpad_kv);
    args.page_table = pointer(a.page_table);
    args.cache_batch_idx = pointer(a.cache_batch_idx);
    args.draft_mask = pointer(a.draft_mask);
    args.schedule = pointer(a.schedule);
    args.bias = pointer(a.bias);
    args.alibi_slopes = pointer(a.alibi_slopes);
    args.sink = pointer(a.sink);
    args.seed = pointer(a.seed);
    args.offset = pointer(a.offset);
    for (const TensorView& array : a.mod_args) mod_args.push_back(array.c_tensor());
    args.mod_args = mod_args.data();
    args.num_mod_args = static_cast<int32_t>(mod_args.size());
    o.mask.fill(args);
    o.mask.fill(options);
    options.scale = o.scale.value_or(NAN);
    options.softcap = o.softcap;
    options.dropout = o.dropout;
    options.seed = o.seed;
    options.offset = o.offset;
    options.first_batch = o.first_batch;
    options.first_head = o.first_head;
    options.first_query = o.first_query;
    options.first_key = o.first_key;
    options.whole_heads_q = o.whole_heads_q;
    options.score_mod = given(o.score_mod.value);
    options.score_mod_gradient = given(o.score_mod.gradient);
    options.mask_mod = given(o.mask_mod);
    options.scale_block = o.scale_block;
    options.out_dtype = static_cast<tessella_dtype>(o.out_dtype);
    options.deterministic = static_cast<int32_t>(o.deterministic);
    options.batch_invariant = o.batch_invariant ? 1 : 0;
    options.query_class = static_cast<int32_t>(o.query_class);
    options.num_splits = o.num_splits;
    options.num_sms = o.num_sms;
    options.num_threads = o.num_threads;
    options.check_device_values = o.check_device_values ? 1 : 0;
    options.max_seqlen_q = o.max_seqlen_q;
    options.max_seqlen_kv = o.max_seqlen_kv;
    options.kernel = given(o.kernel);
    options.allocator = o.allocator;
    options.cancel = reinterpret_cast<const int32_t*>(o.cancel);
    options.cache_settled = o.cache_settled ? 1 : 0;
  }
  ForwardCall(const ForwardCall&) = delete;
  ForwardCall& operator=(const ForwardCall&) = delete;

 private:
  static const char* given(const std::string& value) { return value.empty() ? nullptr : value.c_str(); }
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
