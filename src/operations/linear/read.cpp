// linear: the user's structs -> arguments.
#include <string>
#include <tuple>
#include <utility>

#include "core/error.hpp"
#include "core/limits.hpp"
#include "core/message.hpp"
#include "operations/linear/linear.hpp"
#include "operations/resources.hpp"
#include "operations/tensor_reader.hpp"

namespace tessella::core {
namespace {

class LinearReader {
 public:
  LinearReader(const Linear::Args& args, const Linear::Options& options, const Reading& reading)
      : args_(args), options_(options), reader_(reading), function_(reading.function) {}

  LinearArguments run() {
    activation();
    rows();
    weights();
    scales();
    bias();
    results();
    read_resources<Linear>(a_, options_, reader_);
    if (options_.max_rows < 0 || (options_.max_rows > 0 && options_.max_rows < a_.rows)) {
      invalid(message(function_, ": max_rows is ", options_.max_rows, ", expected 0 or at least ", a_.rows,
                      ", the rows of x"));
    }
    a_.derive_shape();
    return a_;
  }

 private:
  void activation() {
    if (options_.activation != TESSELLA_ACTIVATION_NONE && options_.activation != TESSELLA_SWIGLU) {
      invalid(message(function_, ": activation is ", options_.activation,
                      ", expected TESSELLA_ACTIVATION_NONE or TESSELLA_SWIGLU"));
    }
    a_.activation = static_cast<Activation>(options_.activation);
    for (const auto& [name, value] :
         {std::pair{"weights_ready", options_.weights_ready}, std::pair{"batch_invariant", options_.batch_invariant}}) {
      expect_flag(function_, name, value);
    }
    a_.weights_ready = options_.weights_ready != 0;
    a_.batch_invariant = options_.batch_invariant != 0;
  }

  void rows() {
    const MatrixAxes axes = reader_.matrix("x", args_.x, "in_features", a_.x);
    if (!is_float(a_.x.dtype)) {
      invalid(message(function_, ": x.dtype is ", name(a_.x.dtype), ", expected f64, f32, bf16 or f16"));
    }
    if (axes.columns < 1) invalid(message(function_, ": x.shape[1] is 0, expected at least 1: in_features"));
    a_.rows = axes.rows;
    a_.in_features = axes.columns;
  }

  void weights() {
    const MatrixAxes axes = reader_.matrix("w", args_.w, "in_features", a_.w);
    const bool has_scale = a_.w.dtype == DType::i8 || a_.w.dtype == DType::f8e4m3fn;
    if (a_.w.dtype != a_.x.dtype && !has_scale) {
      invalid(message(function_, ": w.dtype is ", name(a_.w.dtype), ", expected ", name(a_.x.dtype),
                      " = x.dtype, i8 or f8e4m3fn"));
    }
    if (axes.columns != a_.in_features) {
      const bool is_swapped = axes.rows == a_.in_features;
      invalid(message(function_, ": w.shape[1] is ", axes.columns, ", expected ", a_.in_features,
                      " = x.shape[1]; w is (out_features, in_features)", is_swapped ? ", is this its transpose?" : ""));
    }
    if (axes.rows < 1) invalid(message(function_, ": w.shape[0] is 0, expected at least 1: out_features"));
    const bool is_swiglu = a_.activation == Activation::swiglu;
    if (is_swiglu && axes.rows % 2 != 0) {
      invalid(message(function_, ": w.shape[0] is ", axes.rows,
                      ", expected an even number with swiglu: (2 out_features, in_features)"));
    }
    a_.out_features = is_swiglu ? axes.rows / 2 : axes.rows;
  }

  void scales() {
    const bool is_needed = is_quantized(a_.w.dtype);
    if (is_needed != (args_.w_scale != nullptr)) {
      invalid(message(function_, ": w_scale is ", is_needed ? "NULL" : "given", ", expected it ",
                      is_needed ? "beside" : "only beside", " w of i8 or f8e4m3fn"));
    }
    if (is_needed) a_.w_scale = reader_.table<float>("w_scale", args_.w_scale, a_.weight_rows(), "w.shape[0]");
  }

  void bias() {
    if (args_.bias == nullptr) return;
    a_.bias = reader_.vector("bias", *args_.bias, a_.weight_rows(), "w.shape[0]");
    expect_as_x_or_f32("bias", a_.bias.dtype);
  }

  void results() {
    result("out", args_.out, a_.out);
    reader_.writable("out", args_.out);
    expect_as_x_or_f32("out", a_.out.dtype);
    if (args_.residual == nullptr) return;
    result("residual", args_.residual, a_.residual);
    if (a_.residual.dtype != a_.out.dtype) {
      invalid(message(function_, ": residual.dtype is ", name(a_.residual.dtype), ", expected ", name(a_.out.dtype),
                      " = out.dtype"));
    }
  }

  void result(const char* label, const tessella_tensor* tensor, Operand& operand) {
    const MatrixAxes axes = reader_.matrix(label, tensor, "out_features", operand);
    const bool is_swiglu = a_.activation == Activation::swiglu;
    for (const auto& [axis, got, expected, of] :
         {std::tuple{0, axes.rows, a_.rows, "x.shape[0]"},
          std::tuple{1, axes.columns, a_.out_features, is_swiglu ? "w.shape[0] / 2" : "w.shape[0]"}}) {
      if (got == expected) continue;
      invalid(message(function_, ": ", label, ".shape[", axis, "] is ", got, ", expected ", expected, " = ", of));
    }
  }

  void expect_as_x_or_f32(const char* label, DType dtype) const {
    const bool may_be_f32 = a_.x.dtype == DType::bf16 || a_.x.dtype == DType::f16;
    if (dtype == a_.x.dtype || (may_be_f32 && dtype == DType::f32)) return;
    invalid(message(function_, ": ", label, ".dtype is ", name(dtype), ", expected ", name(a_.x.dtype), " = x.dtype",
                    may_be_f32 ? ", or f32" : ""));
  }

  const Linear::Args& args_;
  const Linear::Options& options_;
  TensorReader reader_;
  const char* function_;
  LinearArguments a_;
};

}  // namespace

LinearArguments Linear::read(const Args& args, const Options& options, const Reading& reading) {
  return LinearReader(args, options, reading).run();
}

}  // namespace tessella::core
