// quantize and dequantize: the user's structs -> arguments.

#include <string>
#include <utility>

#include "core/error.hpp"
#include "core/limits.hpp"
#include "core/message.hpp"
#include "operations/quantize/quantize.hpp"
#include "operations/resources.hpp"
#include "operations/rotary.hpp"
#include "operations/tensor_reader.hpp"

namespace tessella::core {
namespace {

// Reads both operations: what only quantize has is absent from a call of dequantize.
class QuantizeReader {
 public:
  QuantizeReader(Operation operation, const Quantize::Args& args, const Quantize::Options& options,
                 const Reading& reading)
      : is_quantize_(operation == Operation::quantize),
        args_(args),
        options_(options),
        reader_(reading),
        function_(reading.function) {
    a_.operation = operation;
  }

  QuantizeArguments run() {
    presence();
    a_.is_packed = args_.cu_seqlens != nullptr;
    if (a_.is_packed) a_.batch = reader_.length("cu_seqlens", *args_.cu_seqlens) - 1;
    rows();
    elements();
    scales();
    means();
    tables();
    rotary();
    outputs();
    options();
    a_.derive_shape();
    return a_;
  }

 private:
  // Of the tensor of numbers, and of that of 8 bits.
  const char* rows_name() const { return is_quantize_ ? "x" : "out"; }
  const char* elements_name() const { return is_quantize_ ? "out" : "x"; }

  void presence() const {
    reader_.together("rotary_cos", args_.rotary_cos, "rotary_sin", args_.rotary_sin);
    reader_.together("k_mean", args_.k_mean, "lse_shift", args_.lse_shift);
    if (args_.rotary_offsets != nullptr && args_.rotary_cos == nullptr) {
      invalid(message(function_, ": rotary_offsets is given, expected it beside rotary_cos and rotary_sin"));
    }
    if (args_.mean != nullptr && args_.k_mean != nullptr) {
      invalid(
          message(function_, ": k_mean is given, expected it absent beside mean: k is smoothed, and q shifts its LSE"));
    }
    if (is_quantize_ && args_.scale == nullptr && options_.scales_given == 0) {
      invalid(message(function_, ": scale is NULL, expected memory for the scales, or option scales_given"));
    }
  }

  void rows() {
    const tessella_tensor* tensor = is_quantize_ ? args_.x : args_.out;
    Operand& operand = is_quantize_ ? a_.from : a_.into;
    const TensorAxes axes = reader_.attention(rows_name(), tensor, a_.is_packed, operand);
    if (operand.dtype != DType::f32 && operand.dtype != DType::bf16 && operand.dtype != DType::f16) {
      invalid(message(function_, ": ", rows_name(), ".dtype is ", core::name(operand.dtype),
                      ", expected f32, bf16 or f16"));
    }
    for (const auto& [label, size] : {std::pair{"heads", axes.heads}, std::pair{"head_dim", axes.head_dim}}) {
      if (size < 1) {
        invalid(message(function_, ": ", label, " of ", rows_name(), " is ", size, ", expected at least 1"));
      }
    }
    if (!a_.is_packed) a_.batch = axes.batch;
    a_.total = axes.rows;
    a_.seqlen = a_.is_packed ? 0 : axes.rows;
    a_.heads = axes.heads;
    a_.head_dim = axes.head_dim;
  }

  void same(const char* name, const tessella_tensor& tensor, int axis, int64_t got, int64_t expected,
            const std::string& what) const {
    if (got != expected) reader_.mismatch(name, tensor, 4, axis, got, expected, what.c_str());
  }

  void elements() {
    const tessella_tensor* tensor = is_quantize_ ? args_.out : args_.x;
    Operand& operand = is_quantize_ ? a_.into : a_.from;
    a_.is_transposed = tensor != nullptr && (tensor->flags & TESSELLA_TRANSPOSED) != 0;
    if (a_.is_transposed && a_.is_packed) {
      invalid(message(function_, ": ", elements_name(), " is transposed, expected no such layout beside cu_seqlens"));
    }
    if (a_.is_transposed) {
      const int64_t axes[4] = {a_.batch, a_.heads, a_.head_dim, a_.padded()};
      operand = reader_.transposed(elements_name(), *tensor, axes);
    } else {
      const TensorAxes axes = reader_.attention(elements_name(), tensor, a_.is_packed, operand);
      const auto of = [&](const char* axis) { return message("the ", axis, " of ", rows_name()); };
      if (!a_.is_packed) same(elements_name(), *tensor, 0, axes.batch, a_.batch, of("batch"));
      same(elements_name(), *tensor, 1, axes.rows, a_.total, of("rows"));
      same(elements_name(), *tensor, 2, axes.heads, a_.heads, of("heads"));
      same(elements_name(), *tensor, 3, axes.head_dim, a_.head_dim, of("head_dim"));
    }
    if (!is_float8(operand.dtype)) {
      invalid(message(function_, ": ", elements_name(), ".dtype is ", core::name(operand.dtype),
                      ", expected f8e4m3fn or f8e5m2"));
    }
  }

  void scales() {
    if (options_.scale_block < 0) {
      invalid(message(function_, ": scale_block is ", options_.scale_block,
                      ", expected at least 0 (all rows of a sequence)"));
    }
    a_.scale_block = options_.scale_block;
    a_.computes_scales = is_quantize_ && options_.scales_given == 0;
    if (args_.scale == nullptr) {
      a_.batches_share = a_.batch > 1;
      a_.heads_share = a_.heads > 1;
      return;
    }
    const QuantizeArguments::Entries axes = a_.scale_axes();
    a_.scale = reader_.scale("scale", *args_.scale, {axes.batch, axes.blocks, axes.heads});
    a_.batches_share = a_.batch > 1 && a_.scale.batch_stride == 0;
    a_.heads_share = a_.heads > 1 && a_.scale.head_stride == 0;
    if (axes.blocks > 1 && a_.scale.row_stride == 0) a_.scale_block = 0;  // one entry for all blocks
  }

  Operand mean(const char* name, const tessella_tensor& tensor, int64_t& heads) {
    Operand operand;
    const TensorAxes axes = reader_.attention(name, &tensor, false, operand);
    if (operand.dtype != DType::f32) {
      invalid(message(function_, ": ", name, ".dtype is ", core::name(operand.dtype), ", expected f32"));
    }
    same(name, tensor, 0, axes.batch, a_.batch, message("the sequences of ", rows_name()));
    same(name, tensor, 1, axes.rows, 1, "one mean for a sequence");
    same(name, tensor, 3, axes.head_dim, a_.head_dim, message("the head_dim of ", rows_name()));
    heads = axes.heads;
    return operand;
  }

  void means() {
    if (args_.mean != nullptr) {
      a_.mean = mean("mean", *args_.mean, a_.mean_heads);
      same("mean", *args_.mean, 2, a_.mean_heads, a_.heads, message("the heads of ", rows_name()));
    }
    if (args_.k_mean == nullptr) return;
    a_.k_mean = mean("k_mean", *args_.k_mean, a_.mean_heads);
    if (a_.mean_heads < 1 || a_.heads % a_.mean_heads != 0) {
      invalid(message(function_, ": k_mean has ", a_.mean_heads, " heads, expected a divisor of ", a_.heads,
                      ", the heads of x"));
    }
    a_.has_shift = true;
    const TensorAxes axes{a_.batch, a_.total, a_.heads, a_.head_dim};
    a_.lse_shift = reader_.lse("lse_shift", *args_.lse_shift, args_.x->ndim, axes,
                               a_.is_packed ? "(heads, total)" : "(batch, heads, seqlen)");
    if (a_.lse_shift.dtype != DType::f32) {
      invalid(message(function_, ": lse_shift.dtype is ", core::name(a_.lse_shift.dtype), ", expected f32"));
    }
  }

  void tables() {
    const auto table = [&](const char* name, const tessella_tensor* tensor, int64_t size, const char* meaning) {
      return tensor == nullptr ? Table<int32_t>() : reader_.table<int32_t>(name, tensor, size, meaning);
    };
    a_.cu_seqlens = table("cu_seqlens", args_.cu_seqlens, a_.batch + 1, "batch + 1");
    a_.rotary_offsets = table("rotary_offsets", args_.rotary_offsets, a_.batch, "batch");
  }

  void rotary() {
    if (args_.rotary_cos == nullptr) return;
    const Rotary rotary = read_rotary(reader_, *args_.rotary_cos, *args_.rotary_sin, a_.from.dtype, "x");
    a_.cos = rotary.cos;
    a_.sin = rotary.sin;
    a_.positions = rotary.positions;
    a_.rotary_dim = rotary.dim;
    if (a_.rotary_dim > a_.head_dim) {
      invalid(message(function_, ": rotary_cos.shape[1] is ", a_.rotary_dim / 2, ", expected at most ", a_.head_dim / 2,
                      ", half the head_dim of x"));
    }
  }

  void outputs() const {
    for (const auto& [label, tensor] :
         {std::pair{"out", args_.out}, std::pair{"scale", a_.computes_scales ? args_.scale : nullptr},
          std::pair{"mean", is_quantize_ ? args_.mean : nullptr}, std::pair{"lse_shift", args_.lse_shift}}) {
      reader_.writable(label, tensor);
    }
  }

  void options() {
    for (const auto& [name, value] :
         {std::pair{"scales_given", options_.scales_given}, std::pair{"hadamard", options_.hadamard},
          std::pair{"rotary_interleaved", options_.rotary_interleaved},
          std::pair{"check_device_values", options_.check_device_values}}) {
      expect_flag(function_, name, value);
    }
    a_.rotary_interleaved = options_.rotary_interleaved != 0;
    if (a_.rotary_interleaved && a_.rotary_dim == 0) {
      invalid(message(function_, ": rotary_interleaved is 1, expected 0 without rotary_cos and rotary_sin"));
    }
    a_.hadamard = options_.hadamard != 0;
    a_.hadamard_seed = options_.hadamard_seed;
    if (a_.hadamard && a_.head_dim % 16 != 0) {
      invalid(message(function_, ": head_dim of ", rows_name(), " is ", a_.head_dim,
                      ", expected a multiple of 16 with hadamard"));
    }
    read_resources<Quantize>(a_, options_, reader_);
    if (options_.max_seqlen < 0 || (options_.max_seqlen > 0 && options_.max_seqlen < a_.total)) {
      invalid(message(function_, ": max_seqlen is ", options_.max_seqlen, ", expected 0 or at least ", a_.total,
                      ", the rows of ", rows_name()));
    }
  }

  bool is_quantize_;
  const Quantize::Args& args_;
  const Quantize::Options& options_;
  TensorReader reader_;
  const char* function_;
  QuantizeArguments a_;
};

}  // namespace

QuantizeArguments Quantize::read(const Args& args, const Options& options, const Reading& reading) {
  return QuantizeReader(kOperation, args, options, reading).run();
}

QuantizeArguments Dequantize::read(const Args& args, const Options& options, const Reading& reading) {
  Quantize::Args same = Quantize::kArgs;
  same.x = args.x;
  same.out = args.out;
  same.scale = args.scale;
  same.mean = args.mean;
  same.cu_seqlens = args.cu_seqlens;
  Quantize::Options as = Quantize::kOptions;
  as.scale_block = options.scale_block;
  as.hadamard = options.hadamard;
  as.hadamard_seed = options.hadamard_seed;
  as.num_sms = options.num_sms;
  as.num_threads = options.num_threads;
  as.check_device_values = options.check_device_values;
  as.max_seqlen = options.max_seqlen;
  as.cancel = options.cancel;
  return QuantizeReader(kOperation, same, as, reading).run();
}

}  // namespace tessella::core
