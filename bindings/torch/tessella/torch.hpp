// Attention on at::Tensor, CPU and CUDA: header-only, over <tessella/attention.hpp>, for ATen of libtorch 1.13 and
// later.
//
//   at::Tensor out = tessella::torch::attention(q, k, v, {.mask = tessella::Mask::causal()});
//
// Nothing is copied. On a GPU work is queued on torch's current stream, and the workspace is of torch's allocator; on
// the CPU as many threads run as at::get_num_threads() says. Failures throw tessella::Error, those of torch's
// own allocation c10::Error; nothing is touched then. Autograd has the gradients.
#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include <string>
#include <tessella/attention.hpp>
#include <tessella/backward.hpp>
#include <tessella/torch/append.hpp>
#include <tessella/torch/linear.hpp>
#include <tessella/torch/merge.hpp>
#include <tessella/torch/quantize.hpp>
#include <tessella/torch/tensor.hpp>
#include <tuple>
#include <utility>
#include <vector>

namespace tessella::torch {

// Arrays of a call beside q, k and v, as ForwardArgs names and shapes them; an undefined tensor is absent. out is made
// when absent, and lse is not written then; schedule is made by decode_schedule, mask_map by the function of that name.
struct Tensors {
  // generated: tensors, from src/api/arguments.toml
  at::Tensor out = {};
  at::Tensor lse = {};
  at::Tensor q_scale = {}, k_scale = {}, v_scale = {};
  at::Tensor out_scale = {};
  at::Tensor amax = {};
  at::Tensor seqlens_q = {}, seqlens_kv = {};
  at::Tensor cu_seqlens_q = {}, cu_seqlens_kv = {};
  at::Tensor leftpad_kv = {};
  at::Tensor page_table = {};
  at::Tensor cache_batch_idx = {};
  at::Tensor draft_mask = {};
  at::Tensor schedule = {};
  at::Tensor mask_map = {};
  at::Tensor bias = {};
  at::Tensor alibi_slopes = {};
  at::Tensor sink = {};
  at::Tensor seed = {}, offset = {};
  // end of generated
  std::vector<at::Tensor> mod_args = {};
  // What bytes of k and v of u8 are: i4 (two in each, the first in the low bits), i8 or f8e4m3fn.
  DType kv_dtype = DType::none;
  bool v_transposed = false;  // v is what quantize writes with is_transposed
  // What the mask views, if the graph is to keep it until the backward is done.
  std::vector<at::Tensor> mask_arrays = {};
};

namespace detail {

[[noreturn]] inline void fail(ErrorCode code, const std::string& message) { fail("attention", code, message); }
inline TensorView view(const at::Tensor& tensor, const char* name) { return view("attention", tensor, name); }
inline TensorView required(const at::Tensor& tensor, const char* name) { return required("attention", tensor, name); }

inline ForwardArgs forward_args(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Tensors& tensors) {
  ForwardArgs args{
      .q = required(q, "q"),
      .k = as_cache("attention", required(k, "k"), "k", tensors.kv_dtype),
      .v = as_cache("attention", elements("attention", v, "v", tensors.v_transposed), "v", tensors.kv_dtype)};
  // generated: views, from src/api/arguments.toml
  args.out = view(tensors.out, "out");
  args.lse = view(tensors.lse, "lse");
  args.q_scale = view(tensors.q_scale, "q_scale");
  args.k_scale = view(tensors.k_scale, "k_scale");
  args.v_scale = view(tensors.v_scale, "v_scale");
  args.out_scale = view(tensors.out_scale, "out_scale");
  args.amax = view(tensors.amax, "amax");
  args.seqlens_q = view(tensors.seqlens_q, "seqlens_q");
  args.seqlens_kv = view(tensors.seqlens_kv, "seqlens_kv");
  args.cu_seqlens_q = view(tensors.cu_seqlens_q, "cu_seqlens_q");
  args.cu_seqlens_kv = view(tensors.cu_seqlens_kv, "cu_seqlens_kv");
  args.leftpad_kv = view(tensors.leftpad_kv, "leftpad_kv");
  args.page_table = view(tensors.page_table, "page_table");
  args.cache_batch_idx = view(tensors.cache_batch_idx, "cache_batch_idx");
  args.draft_mask = view(tensors.draft_mask, "draft_mask");
  args.schedule = view(tensors.schedule, "schedule");
  args.mask_map = view(tensors.mask_map, "mask_map");
  args.bias = view(tensors.bias, "bias");
  args.alibi_slopes = view(tensors.alibi_slopes, "alibi_slopes");
  args.sink = view(tensors.sink, "sink");
  args.seed = view(tensors.seed, "seed");
  args.offset = view(tensors.offset, "offset");
  // end of generated
  for (const at::Tensor& array : tensors.mod_args) args.mod_args.push_back(required(array, "mod_args"));
  return args;
}

inline int64_t head_dim_v(const at::Tensor& v, const Tensors& tensors) {
  if (tensors.v_transposed && v.dim() > 2) return v.size(-2);
  return v.size(-1) * (tensors.kv_dtype == i4 && v.scalar_type() == at::kByte ? 2 : 1);
}

// Of an out that is to be made, of fp8 only where that is asked for; none: that of q.
inline DType out_dtype(const at::Tensor& q, const AttentionOptions& options) {
  const DType asked = options.out_dtype;
  if (asked == f32 || asked == bf16 || asked == f16 || asked == f8e4m3fn || asked == f8e5m2) return asked;
  const bool is_float8 = is_named(q.scalar_type(), kFloat8E4m3) || is_named(q.scalar_type(), kFloat8E5m2);
  return is_float8 ? bf16 : DType::none;
}

inline at::ScalarType required_type(const char* name) {
  const at::ScalarType type = type_named(name);
  if (type == at::ScalarType::Undefined)
    fail(ErrorCode::unsupported, std::string("out is to be ") + name + ", which this libtorch has not");
  return type;
}

inline at::ScalarType scalar_type(DType out, const at::Tensor& q) {
  switch (out) {
    case f32: return at::kFloat;
    case bf16: return at::kBFloat16;
    case f16: return at::kHalf;
    case f8e4m3fn: return required_type(kFloat8E4m3);
    case f8e5m2: return required_type(kFloat8E5m2);
    default: return q.scalar_type();
  }
}

inline at::Tensor new_out(const at::Tensor& q, const at::Tensor& v, const AttentionOptions& options,
                          const Tensors& tensors) {
  std::vector<int64_t> shape = q.sizes().vec();
  shape.back() = head_dim_v(v, tensors);
  return at::empty(shape, q.options().dtype(scalar_type(out_dtype(q, options), q)));
}

// out as new_out makes it, without memory.
inline TensorView like_out(const at::Tensor& q, const at::Tensor& v, const AttentionOptions& options,
                           const Tensors& tensors) {
  tessella_tensor out = view(q.detach(), "q").c_tensor();
  out.data = nullptr;
  if (const DType dtype = out_dtype(q, options); dtype != DType::none) out.dtype = static_cast<int32_t>(dtype);
  out.shape[out.ndim - 1] = head_dim_v(v, tensors);
  int64_t step = 1;
  for (int axis = out.ndim - 1; axis >= 0; step *= out.shape[axis--]) out.strides[axis] = step;
  return TensorView(out);
}

// In double where inputs are: gradients are as exact as out.
inline at::Tensor new_lse(const at::Tensor& q) {
  const at::ScalarType dtype = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  std::vector<int64_t> shape = q.sizes().vec();
  shape.pop_back();
  if (shape.size() >= 2) std::swap(shape[shape.size() - 1], shape[shape.size() - 2]);
  return at::empty(shape, q.options().dtype(dtype));
}

// Writes tensors.out, which is made when absent, and tensors.lse where it is given.
inline void run_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& options,
                        Tensors& tensors) {
  required(q, "q");
  required(v, "v");
  if (!tensors.out.defined()) tensors.out = new_out(q, v, options, tensors);
  const ForwardArgs args = forward_args(q, k, v, tensors);
  run_on(q, options, [&](const AttentionOptions& own, void* stream) { forward(args, own, stream); });
  for (const at::Tensor* tensor : {&tensors.out, &tensors.lse, &tensors.amax}) written(*tensor);
}

// What of the options concerns gradients: they are computed by kernels of their own.
inline AttentionOptions of_gradients(AttentionOptions options) {
  options.kernel.clear();
  options.num_splits = 0;
  options.query_class = {};
  options.cache_settled = false;
  return options;
}

// What a backward needs of its forward beside the tensors that autograd saves.
struct Kept : ::torch::CustomClassHolder {
  AttentionOptions options;
  Tensors tensors;  // without out, lse and those that have gradients
  bool has_bias, has_alibi_slopes, has_sink;
};

// attention_lse in autograd's graph.
class Differentiable : public ::torch::autograd::Function<Differentiable> {
 public:
  using Context = ::torch::autograd::AutogradContext;
  using List = ::torch::autograd::variable_list;

  // bias, alibi_slopes and sink: any where they are absent.
  static List forward(Context* context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                      const at::Tensor& bias, const at::Tensor& alibi_slopes, const at::Tensor& sink,
                      const c10::intrusive_ptr<Kept>& kept) {
    Tensors tensors = with(*kept, bias, alibi_slopes, sink);
    tensors.lse = new_lse(q);
    run_forward(q, k, v, kept->options, tensors);
    int64_t wanted = 0;
    const at::Tensor* inputs[] = {&q, &k, &v, &bias, &alibi_slopes, &sink};
    for (int i = 0; i < 6; ++i) wanted |= inputs[i]->requires_grad() ? int64_t{1} << i : 0;
    context->save_for_backward({q, k, v, bias, alibi_slopes, sink, tensors.out, tensors.lse});
    context->saved_data["kept"] = c10::IValue::make_capsule(kept);
    context->saved_data["wanted"] = wanted;
    context->set_materialize_grads(false);
    return {tensors.out, tensors.lse};
  }

  static List backward(Context* context, List incoming) {
    if (c10::GradMode::is_enabled()) {
      fail(ErrorCode::unsupported,
           "a gradient of gradients is wanted, and there is none, expected a backward without create_graph");
    }
    const auto kept = c10::static_intrusive_pointer_cast<Kept>(context->saved_data["kept"].toCapsule());
    const int64_t wanted = context->saved_data["wanted"].toInt();
    const List saved = context->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2];
    Tensors tensors = with(*kept, saved[3], saved[4], saved[5]);
    tensors.out = saved[6];
    tensors.lse = saved[7];
    const at::Tensor d_out = incoming[0].defined() ? rows(incoming[0]) : at::zeros_like(tensors.out);
    const at::Tensor d_lse = incoming[1].defined() ? incoming[1].resolve_neg() : at::Tensor();
    List made(7);
    for (size_t i = 0; i < 6; ++i) {
      if ((wanted >> i & 1) != 0) made[i] = like(saved[i]);
    }
    const Gradients gradients{.d_out = view(d_out, "d_out"),
                              .d_lse = view(d_lse, "d_lse"),
                              .dq = view(made[0], "dq"),
                              .dk = view(made[1], "dk"),
                              .dv = view(made[2], "dv"),
                              .d_bias = view(made[3], "d_bias"),
                              .d_sink = view(made[5], "d_sink"),
                              .d_alibi_slopes = view(made[4], "d_alibi_slopes")};
    const ForwardArgs args = forward_args(q, k, v, tensors);
    run_on(q, of_gradients(kept->options),
           [&](const AttentionOptions& own, void* stream) { tessella::backward(args, gradients, own, stream); });
    return made;
  }

 private:
  static Tensors with(const Kept& kept, const at::Tensor& bias, const at::Tensor& alibi_slopes,
                      const at::Tensor& sink) {
    Tensors tensors = kept.tensors;
    if (kept.has_bias) tensors.bias = bias;
    if (kept.has_alibi_slopes) tensors.alibi_slopes = alibi_slopes;
    if (kept.has_sink) tensors.sink = sink;
    return tensors;
  }
  // With a contiguous head_dim, which the gradient of a sum has not.
  static at::Tensor rows(const at::Tensor& d_out) {
    const at::Tensor own = d_out.resolve_neg();
    return own.stride(-1) == 1 ? own : own.contiguous();
  }
  static at::Tensor like(const at::Tensor& tensor) {
    return tensor.stride(-1) == 1 ? at::empty_like(tensor) : at::empty(tensor.sizes(), tensor.options());
  }
};

// Whether the mask of such a call has a map.
inline bool has_mapped_mask(const AttentionOptions& options) {
  tessella_forward_args args = TESSELLA_FORWARD_ARGS_INIT;
  options.mask.fill(args);
  return args.dense_mask != nullptr || args.block_map != nullptr || args.document_ids_q != nullptr ||
         args.key_ranges != nullptr || args.query_ranges != nullptr || !options.mask_mod.empty();
}

inline bool needs_grad(const at::Tensor& tensor) { return tensor.defined() && tensor.requires_grad(); }

// Whether autograd's graph gets a node: throws for what has no gradients.
inline bool is_differentiable(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const AttentionOptions& options, const Tensors& tensors) {
  if (!c10::GradMode::is_enabled()) return false;
  const std::pair<const char*, const at::Tensor*> inputs[] = {{"q", &q},
                                                              {"k", &k},
                                                              {"v", &v},
                                                              {"bias", &tensors.bias},
                                                              {"alibi_slopes", &tensors.alibi_slopes},
                                                              {"sink", &tensors.sink}};
  const char* first = nullptr;
  for (const auto& [name, tensor] : inputs) {
    if (first == nullptr && needs_grad(*tensor)) first = name;
  }
  if (first == nullptr) return false;
  const auto no = [&](const std::string& reason) {
    fail(ErrorCode::unsupported, std::string(first) + " requires grad, and " + reason +
                                     "; for the forward alone expected .detach() of each tensor that requires grad, or "
                                     "a call under torch::NoGradGuard");
  };
  if (q.defined() && q.is_cuda() && options.out_dtype == f32 && q.scalar_type() != at::kFloat) {
    no("on cuda an out of f32 beside q of 16 bits has no gradients");
  }
  const bool is_double = q.defined() && q.scalar_type() == at::kDouble;  // whose reference takes what no kernel does
  for (const at::Tensor* tensor : {&q, &v}) {
    if (!tensor->defined() || tensor->dim() == 0 || is_double) continue;
    const int64_t head_dim = tensor == &v ? head_dim_v(v, tensors) : tensor->size(-1);
    if (head_dim <= (tensor->is_cuda() ? 256 : 512)) continue;
    no("no kernel computes gradients of head_dim " + std::to_string(head_dim) + " on " +
       c10::DeviceTypeName(tensor->device().type(), true));
  }
  const bool is_slice = options.first_batch != 0 || options.first_head != 0 || options.first_query != 0 ||
                        options.first_key != 0 || options.whole_heads_q != 0;
  if (is_slice && !is_double) no("slices of a whole have gradients in f64 alone");
  if (tensors.page_table.defined()) no("keys in pages have no gradients");
  if (tensors.cache_batch_idx.defined()) no("keys in slots of a cache have no gradients");
  if (tensors.draft_mask.defined()) no("drafts have no gradients");
  if (v.defined() && v.element_size() == 1) no("quantised caches have no gradients");
  if (tensors.schedule.defined()) no("calls whose keys are split by a schedule have no gradients");
  if (tensors.out.defined() || tensors.lse.defined()) no("a call with out or lse given has no gradients");
  return true;
}

inline std::tuple<at::Tensor, at::Tensor> differentiated(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                         AttentionOptions options, const Tensors& tensors) {
  for (const auto& [name, tensor] : {std::pair{"q", &q}, {"k", &k}, {"v", &v}}) {
    if (!tensor->defined()) required(*tensor, name);
  }
  auto kept = c10::make_intrusive<Kept>();
  kept->options = std::move(options);
  kept->tensors = tensors;
  kept->has_bias = std::exchange(kept->tensors.bias, {}).defined();
  kept->has_alibi_slopes = std::exchange(kept->tensors.alibi_slopes, {}).defined();
  kept->has_sink = std::exchange(kept->tensors.sink, {}).defined();
  const auto or_empty = [](const at::Tensor& tensor) { return tensor.defined() ? tensor : at::empty({0}); };
  const auto made = Differentiable::apply(q, k, v, or_empty(tensors.bias), or_empty(tensors.alibi_slopes),
                                          or_empty(tensors.sink), kept);
  return {made[0], made[1]};
}

// What is made before calls like this one: `bytes` and `make` of Plan, in `given` where it is given, as args.*member.
template <typename Bytes, typename Make>
at::Tensor made_before(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& options,
                       const Tensors& tensors, TensorView ForwardArgs::*member, at::Tensor given, Bytes bytes,
                       Make make) {
  const c10::AutoGradMode no_grad(false);  // tensors that require grad are read as any
  ForwardArgs args = forward_args(q, k, v, tensors);
  if (!tensors.out.defined()) args.out = like_out(q, v, options, tensors);
  if (!given.defined()) {
    args.*member = tessella::view(static_cast<void*>(nullptr), i32, {0}, {}, device_of("attention", q, "q"));
  }
  run_on(q, options, [&](const AttentionOptions& own, void* stream) {
    const Plan plan = plan_forward(args, own);
    if (!given.defined()) {
      given = at::empty({static_cast<int64_t>(bytes(plan, args) / sizeof(int32_t))}, q.options().dtype(at::kInt));
      args.*member = view(given, "tensor");
    }
    make(plan, args, stream);
  });
  return given;
}

}  // namespace detail

// The tensor's memory as the C++ API takes it, for masks: Mask::document(tessella::torch::view(ids)). It keeps nothing
// alive.
inline TensorView view(const at::Tensor& tensor) { return detail::required(tensor, "tensor"); }

// Exact attention, out = softmax(scale * q . k^T, masked) . v, in linear memory.
//   q        (batch, seqlen_q, heads_q, head_dim_qk), f64, f32, bf16 or f16; transpose(1, 2) makes it of (b, h, s, d)
//   k, v     (batch, seqlen_kv, heads_kv, head_dim_qk or head_dim_v), dtype of q; heads_kv divides heads_q. For few
//            queries also caches of f8e4m3fn, i8 and i4 (tensors.kv_dtype), times k_scale and v_scale
//   returns  (batch, seqlen_q, heads_q, head_dim_v), dtype of q or options.out_dtype
// head_dim is contiguous; other strides are free. Fewer axes and packed sequences as in tessella.h. dropout's seed is
// that of the options, 0 where not set, or a tensor: none is drawn, and calls with the same seed drop the same entries.
// Autograd has the gradients of q, k, v, bias, alibi_slopes and sink, where tensors that the mask views
// (unless they are mask_arrays too) and the options' allocator and flag must live until the backward is done. Throws
// Error as tessella::forward and tessella::backward.
inline at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            AttentionOptions options = {}, Tensors tensors = {}) {
  if (detail::is_differentiable(q, k, v, options, tensors)) {
    return std::get<0>(detail::differentiated(q, k, v, std::move(options), tensors));
  }
  detail::run_forward(q, k, v, options, tensors);
  return tensors.out;
}

// The same, and the natural logarithm of the softmax's sum: (batch, heads_q, seqlen_q), packed (heads_q, total_q), f32.
inline std::tuple<at::Tensor, at::Tensor> attention_lse(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                        AttentionOptions options = {}, Tensors tensors = {}) {
  if (detail::is_differentiable(q, k, v, options, tensors)) {
    return detail::differentiated(q, k, v, std::move(options), tensors);
  }
  detail::required(q, "q");
  if (!tensors.lse.defined()) tensors.lse = detail::new_lse(q);
  detail::run_forward(q, k, v, options, tensors);
  return {tensors.out, tensors.lse};
}

// How the keys of ragged sequences are split, for tensors.schedule of calls like this one with the same lengths and
// window: made on the GPU, once a model step (tessella_plan_schedule). What q, k and v hold is not read.
inline at::Tensor decode_schedule(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const AttentionOptions& options = {}, const Tensors& tensors = {}) {
  return detail::made_before(
      q, k, v, options, tensors, &ForwardArgs::schedule, tensors.schedule,
      [](const Plan& plan, const ForwardArgs& args) { return plan.schedule_bytes(args); },
      [](const Plan& plan, const ForwardArgs& args, void* stream) { plan.make_schedule(args, stream); });
}

// The map of the tiles that the mask hides, for tensors.mask_map of calls with this mask, their gradients too: made on
// the GPU, once a model step, in tensors.mask_map where it is given. Calls may have any head dim and dtype, and any
// number of heads where the mask has no head axis. Batch, lengths, padding, draft_mask, mask_mod with its arrays and
// the mask's memory are those given here; nothing checks that, and with others results are wrong. What q, k and v hold
// is not read. Returns an undefined tensor where nothing is to be read: on CPUs, and for masks that have none of dense,
// block_map, document, key_ranges, query_ranges and mask_mod.
inline at::Tensor mask_map(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const AttentionOptions& options, const Tensors& tensors = {}) {
  const c10::AutoGradMode no_grad(false);
  for (const auto& [name, tensor] : {std::pair{"q", &q}, {"k", &k}, {"v", &v}}) detail::required(*tensor, name);
  if (q.is_cpu() || !detail::has_mapped_mask(options)) return {};
  return detail::made_before(
      q, k, v, options, tensors, &ForwardArgs::mask_map, tensors.mask_map,
      [](const Plan& plan, const ForwardArgs& args) { return plan.mask_map_bytes(args); },
      [](const Plan& plan, const ForwardArgs& args, void* stream) { plan.make_mask_map(args, stream); });
}

}  // namespace tessella::torch
