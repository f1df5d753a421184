// backward: the user's structs -> arguments.

#include <algorithm>
#include <string>

#include "core/error.hpp"
#include "core/message.hpp"
#include "operations/attention/read_forward.hpp"
#include "operations/grow.hpp"
#include "operations/tensor_reader.hpp"

namespace tessella::core {
namespace {

// Adds the gradients to the arguments of the forward call.
class GradientReader {
 public:
  GradientReader(const Backward::Args& args, const Forward::Args& forward, const Forward::Options& options,
                 const Reading& reading, AttentionArguments& arguments)
      : args_(args),
        forward_(forward),
        options_(options),
        function_(reading.function),
        a_(arguments),
        reader_(reading) {}

  void run() {
    a_.operation = Operation::backward;
    a_.need_not_be_deterministic = options_.deterministic == 2;
    if (forward_.lse == nullptr) invalid(message(function_, ": forward.lse is NULL, expected what the call wrote"));
    for (const auto& [name, feature] : {std::pair{"page_table", Feature::paged_kv},
                                        {"cache_batch_idx", Feature::cache_batch_idx},
                                        {"draft_mask", Feature::draft_mask},
                                        {"scales", Feature::scales},
                                        {"a transposed v", Feature::transposed_v}}) {
      if (a_.features.has(feature)) unsupported(message(function_, ": ", name, " is given, and has no gradients"));
    }
    if (a_.features.has(Feature::schedule)) {
      unsupported(message(function_, ": schedule is given, and calls whose keys are split have no gradients"));
    }
    a_.score_mod_gradient = options_.score_mod_gradient == nullptr ? "" : options_.score_mod_gradient;
    for (const auto& [name, of] : {std::pair{"k", &a_.k()}, {"v", &a_.v()}}) {
      if (!is_quantized(of->dtype) || is_quantized(a_.dtype())) continue;
      unsupported(message(function_, ": ", name, ".dtype is ", core::name(of->dtype), ", expected ",
                          core::name(a_.dtype()), " as of q: quantised caches have no gradients"));
    }
    if (!a_.score_mod.empty() && a_.score_mod_gradient.empty()) {
      invalid(message(function_, ": score_mod is given without score_mod_gradient, expected both"));
    }
    Operand ignored;
    reader_.attention("q", forward_.q, is_packed_q(), ignored);  // says where the call's tensors are
    const auto of_out = reader_.attention("d_out", args_.d_out, is_packed_q(), a_.tensors[Name::d_out]);
    same_axes("d_out", *args_.d_out, of_out, of_q(a_.head_dim_v), "out");
    one_of("d_out", a_.tensors[Name::d_out].dtype, {a_.out_dtype(), a_.dtype()});
    d_lse();
    operand(Name::dq, args_.dq, is_packed_q(), of_q(a_.head_dim_qk), "q");
    operand(Name::dk, args_.dk, is_packed_kv(), of_kv(a_.head_dim_qk), "k");
    operand(Name::dv, args_.dv, is_packed_kv(), of_kv(a_.head_dim_v), "v");
    score("d_bias", args_.d_bias, "bias", forward_.bias, Feature::d_bias, a_.d_bias);
    score("d_sink", args_.d_sink, "sink", forward_.sink, Feature::d_sink, a_.d_sink);
    score("d_alibi_slopes", args_.d_alibi_slopes, "alibi_slopes", forward_.alibi_slopes, Feature::d_alibi_slopes,
          a_.d_alibi_slopes);
    accumulate();
    a_.derive_shape();
  }

 private:
  bool is_packed_q() const { return forward_.cu_seqlens_q != nullptr; }
  bool is_packed_kv() const { return forward_.cu_seqlens_kv != nullptr; }
  TensorAxes of_q(int64_t dim) const { return {a_.axes_q().batch, a_.total_q, a_.heads_q, dim}; }
  TensorAxes of_kv(int64_t dim) const { return {a_.axes_kv().batch, a_.total_kv, a_.heads_kv, dim}; }

  void same_axes(const char* name, const tessella_tensor& tensor, const TensorAxes& got, const TensorAxes& expected,
                 const char* like) const {
    const auto same = [&](int axis, int64_t size, int64_t wanted) {
      if (size == wanted) return;
      reader_.mismatch(name, tensor, 4, axis, size, wanted, message("that of ", like).c_str());
    };
    same(0, got.batch, expected.batch);
    same(1, got.rows, expected.rows);
    same(2, got.heads, expected.heads);
    same(3, got.head_dim, expected.head_dim);
  }

  void one_of(const char* name, DType got, std::initializer_list<DType> expected) const {
    if (got == DType::f32 || std::ranges::find(expected, got) != expected.end()) return;
    const DType first = *expected.begin();
    invalid(message(function_, ": ", name, ".dtype is ", core::name(got), ", expected ", core::name(first),
                    first == DType::f32 ? "" : " or f32"));
  }

  void d_lse() {
    if (args_.d_lse == nullptr) return;
    a_.features |= Feature::d_lse;
    Operand& to = a_.tensors[Name::d_lse];
    to = reader_.lse("d_lse", *args_.d_lse, forward_.q->ndim, {a_.batch, a_.total_q, a_.heads_q, 1},
                     is_packed_q() ? "(heads_q, total_q)" : "(batch, heads_q, seqlen_q)");
    if (to.dtype == DType::f32 || (to.dtype == DType::f64 && a_.dtype() == DType::f64)) return;
    invalid(message(function_, ": d_lse.dtype is ", core::name(to.dtype), ", expected f32"));
  }

  void operand(Name name, const tessella_tensor* tensor, bool packed, const TensorAxes& axes, const char* like) {
    if (tensor == nullptr) return;
    same_axes(core::name(name), *tensor, reader_.attention(core::name(name), tensor, packed, a_.tensors[name]), axes,
              like);
    one_of(core::name(name), a_.tensors[name].dtype, {a_.dtype()});
    reader_.writable(core::name(name), tensor);
  }

  // Reads the gradient of a tensor that scores read; it has the shape of `of`.
  void score(const char* name, const tessella_tensor* tensor, const char* of_name, const tessella_tensor* of,
             Feature feature, ScoreGradient& gradient) {
    if (tensor == nullptr) return;
    if (of == nullptr) invalid(message(function_, ": ", name, " is given, expected it beside forward.", of_name));
    if (tensor->ndim != of->ndim || !std::equal(of->shape, of->shape + of->ndim, tensor->shape)) {
      invalid(message(function_, ": ", name, " has another shape than ", of_name, ", expected the same"));
    }
    a_.features |= feature;
    const bool is_bias = feature == Feature::d_bias;
    gradient = reader_.score_gradient(name, *tensor, is_bias);
    one_of(name, gradient.dtype, {is_bias ? a_.bias.dtype : DType::f32});
    reader_.writable(name, tensor);
  }

  void accumulate() {
    const int32_t known =
        TESSELLA_DQ | TESSELLA_DK | TESSELLA_DV | TESSELLA_D_BIAS | TESSELLA_D_SINK | TESSELLA_D_ALIBI_SLOPES;
    int32_t given = 0;
    for (const auto& [bit, tensor] : {std::pair{TESSELLA_DQ, args_.dq},
                                      {TESSELLA_DK, args_.dk},
                                      {TESSELLA_DV, args_.dv},
                                      {TESSELLA_D_BIAS, args_.d_bias},
                                      {TESSELLA_D_SINK, args_.d_sink},
                                      {TESSELLA_D_ALIBI_SLOPES, args_.d_alibi_slopes}}) {
      if (tensor != nullptr) given |= bit;
    }
    if (given == 0) invalid(message(function_, ": no gradient is given, expected one of dq, dk, dv or more"));
    if ((args_.accumulate & ~(known & given)) != 0) {
      invalid(message(function_, ": accumulate is ", args_.accumulate, ", expected bits of gradients that are given"));
    }
    a_.accumulate = static_cast<uint32_t>(args_.accumulate);
  }

  const Backward::Args& args_;
  const Forward::Args& forward_;
  const Forward::Options& options_;
  const char* function_;
  AttentionArguments& a_;
  TensorReader reader_;
};

}  // namespace

AttentionArguments Backward::read(const Args& args, const Options& options, const Reading& reading) {
  if (args.forward == nullptr) {
    invalid(message(reading.function, ": forward is NULL, expected the arguments of the call"));
  }
  const Forward::Args forward = grow(args.forward, Forward::kArgs, reading.function, "args");
  Reading of_forward = reading;
  if (reading.memory == Memory::written) of_forward.memory = Memory::read;
  AttentionArguments arguments = read_forward(forward, options, of_forward);
  GradientReader(args, forward, options, reading, arguments).run();
  return arguments;
}

}  // namespace tessella::core
