// merge: the user's structs -> arguments.

#include <string>

#include "core/error.hpp"
#include "core/message.hpp"
#include "operations/merge/merge.hpp"
#include "operations/resources.hpp"
#include "operations/tensor_reader.hpp"

namespace tessella::core {
namespace {

class MergeReader {
 public:
  MergeReader(const Merge::Args& args, const Merge::Options& options, const Reading& reading)
      : args_(args), options_(options), reader_(reading), function_(reading.function) {}

  MergeArguments run() {
    states();
    result();
    read_resources<Merge>(a_, options_, reader_);
    if (options_.max_seqlen < 0 || (options_.max_seqlen > 0 && options_.max_seqlen < a_.seqlen)) {
      invalid(message(function_, ": max_seqlen is ", options_.max_seqlen, ", expected 0 or at least ", a_.seqlen,
                      ", the rows of outs"));
    }
    a_.derive_shape();
    return a_;
  }

 private:
  void states() {
    if (args_.num_states < 1) {
      invalid(message(function_, ": num_states is ", args_.num_states, ", expected at least 1"));
    }
    for (const auto& [name, tensors] : {std::pair{"outs", args_.outs}, std::pair{"lses", args_.lses}}) {
      if (tensors == nullptr) invalid(message(function_, ": ", name, " is NULL, expected num_states tensors"));
    }
    a_.given.resize(static_cast<size_t>(args_.num_states));
    for (int32_t i = 0; i < args_.num_states; ++i) {
      MergeArguments::State& state = a_.given[static_cast<size_t>(i)];
      const std::string out_name = message("outs[", i, "]");
      const TensorAxes axes = reader_.attention(out_name.c_str(), &args_.outs[i], false, state.out);
      if (i == 0) {
        first(axes, state.out.dtype);
      } else {
        same_axes(out_name.c_str(), args_.outs[i], axes);
        if (state.out.dtype != dtype_) {
          invalid(message(function_, ": ", out_name, ".dtype is ", name(state.out.dtype), ", expected ", name(dtype_),
                          " = outs[0].dtype"));
        }
      }
      state.lse = lse(message("lses[", i, "]").c_str(), args_.lses[i], args_.outs[i]);
    }
  }

  void first(const TensorAxes& axes, DType dtype) {
    if (!is_float(dtype)) {
      invalid(message(function_, ": outs[0].dtype is ", name(dtype), ", expected f64, f32, bf16 or f16"));
    }
    for (const auto& [label, size] : {std::pair{"heads", axes.heads}, std::pair{"head_dim", axes.head_dim}}) {
      if (size < 1) invalid(message(function_, ": ", label, " of outs[0] is ", size, ", expected at least 1"));
    }
    dtype_ = dtype;
    a_.batch = axes.batch;
    a_.seqlen = axes.rows;
    a_.heads = axes.heads;
    a_.head_dim = axes.head_dim;
  }

  void same_axes(const char* name, const tessella_tensor& tensor, const TensorAxes& axes) const {
    const auto same = [&](int axis, int64_t got, int64_t expected, const char* expected_name) {
      if (got != expected) reader_.mismatch(name, tensor, 4, axis, got, expected, expected_name);
    };
    same(0, axes.batch, a_.batch, "the batch of outs[0]");
    same(1, axes.rows, a_.seqlen, "the rows of outs[0]");
    same(2, axes.heads, a_.heads, "the heads of outs[0]");
    same(3, axes.head_dim, a_.head_dim, "the head_dim of outs[0]");
  }

  Operand lse(const char* name, const tessella_tensor& tensor, const tessella_tensor& out) {
    const Operand operand = reader_.lse(name, tensor, out.ndim, {a_.batch, a_.seqlen, a_.heads, 1},
                                        out.ndim == 4   ? "(batch, heads, seqlen)"
                                        : out.ndim == 3 ? "(heads, seqlen)"
                                                        : "(seqlen)");
    if (operand.dtype != DType::f32 && !(operand.dtype == DType::f64 && dtype_ == DType::f64)) {
      invalid(message(function_, ": ", name, ".dtype is ", core::name(operand.dtype), ", expected f32",
                      dtype_ == DType::f64 ? " or f64" : ""));
    }
    return operand;
  }

  void result() {
    Operand& out = a_.result.out;
    const TensorAxes axes = reader_.attention("out", args_.out, false, out);
    same_axes("out", *args_.out, axes);
    const bool narrows = dtype_ == DType::f32 && (out.dtype == DType::bf16 || out.dtype == DType::f16);
    if (out.dtype != dtype_ && out.dtype != DType::f32 && !narrows) {
      invalid(message(function_, ": out.dtype is ", name(out.dtype), ", expected ", name(dtype_), " = outs[0].dtype",
                      dtype_ == DType::f32 ? ", or bf16 or f16" : ", or f32"));
    }
    if (args_.lse != nullptr) a_.result.lse = lse("lse", *args_.lse, *args_.out);
    for (const auto& [label, tensor] : {std::pair{"out", args_.out}, std::pair{"lse", args_.lse}}) {
      reader_.writable(label, tensor);
    }
  }

  const Merge::Args& args_;
  const Merge::Options& options_;
  TensorReader reader_;
  const char* function_;
  DType dtype_ = DType::none;  // of the states
  MergeArguments a_;
};

}  // namespace

MergeArguments Merge::read(const Args& args, const Options& options, const Reading& reading) {
  return MergeReader(args, options, reading).run();
}

}  // namespace tessella::core
