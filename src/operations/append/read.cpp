// append: the user's structs -> arguments.

#include <algorithm>
#include <limits>
#include <string>
#include <tuple>
#include <utility>

#include "core/error.hpp"
#include "core/limits.hpp"
#include "core/message.hpp"
#include "operations/append/append.hpp"
#include "operations/resources.hpp"
#include "operations/rotary.hpp"
#include "operations/tensor_reader.hpp"

namespace tessella::core {
namespace {

class AppendReader {
 public:
  AppendReader(const Append::Args& args, const Append::Options& options, const Reading& reading)
      : args_(args), options_(options), reader_(reading), function_(reading.function) {}

  AppendArguments run() {
    presence();
    if (args_.cu_seqlens_new != nullptr) a_.batch = reader_.length("cu_seqlens_new", *args_.cu_seqlens_new) - 1;
    new_rows("k_new", args_.k_new, a_.k_new, a_.k_rows.from);
    new_rows("v_new", args_.v_new, a_.v_new, a_.v_rows.from);
    cache("k", args_.k, a_.k_new, a_.k_rows.into);
    cache("v", args_.v, a_.v_new, a_.v_rows.into);
    scales();
    queries();
    tables();
    rotary();
    outputs();
    options();
    a_.derive_shape();
    return a_;
  }

 private:
  void presence() const {
    if (args_.k_new == nullptr && args_.v_new == nullptr) {
      invalid(message(function_, ": k_new and v_new are NULL, expected one of them or both"));
    }
    reader_.together("k_new", args_.k_new, "k", args_.k);
    reader_.together("v_new", args_.v_new, "v", args_.v);
    reader_.together("rotary_cos", args_.rotary_cos, "rotary_sin", args_.rotary_sin);
    reader_.together("q", args_.q, "q_out", args_.q_out);
    for (const auto& [name, scale, beside, cache] :
         {std::tuple{"k_scale", args_.k_scale, "k", args_.k}, std::tuple{"v_scale", args_.v_scale, "v", args_.v}}) {
      if (scale != nullptr && cache == nullptr) {
        invalid(message(function_, ": ", name, " is given, expected it beside ", beside));
      }
    }
    const auto needs = [&](const char* name, const tessella_tensor* tensor, bool has, const char* beside) {
      if (tensor != nullptr && !has) invalid(message(function_, ": ", name, " is given, expected it beside ", beside));
    };
    needs("q", args_.q, args_.rotary_cos != nullptr, "rotary_cos and rotary_sin");
    needs("rotary_offsets", args_.rotary_offsets, args_.rotary_cos != nullptr, "rotary_cos and rotary_sin");
    needs("rotary_cos", args_.rotary_cos, args_.k_new != nullptr || args_.q != nullptr, "k_new or q");
    if (args_.page_table != nullptr && args_.cache_batch_idx != nullptr) {
      invalid(message(function_, ": cache_batch_idx is given, expected it absent beside page_table"));
    }
    if (args_.seqlens_kv == nullptr) invalid(message(function_, ": seqlens_kv is NULL, expected a tensor"));
  }

  bool is_packed() const { return args_.cu_seqlens_new != nullptr; }

  // k_new, v_new or q. The first one read says how many rows there are, and of what dtype.
  void new_rows(const char* name, const tessella_tensor* tensor, RowsShape& shape, Operand& operand) {
    if (tensor == nullptr) return;
    const TensorAxes axes = reader_.attention(name, tensor, is_packed(), operand);
    if (first_ == nullptr) {
      if (!is_float(operand.dtype)) {
        invalid(message(function_, ": ", name, ".dtype is ", core::name(operand.dtype),
                        ", expected f64, f32, bf16 or f16"));
      }
      first_ = name;
      dtype_ = operand.dtype;
      if (!is_packed()) a_.batch = axes.batch;
      a_.total_new = axes.rows;
      a_.seqlen_new = is_packed() ? 0 : axes.rows;
    }
    of_dtype(name, operand.dtype);
    const auto same = [&](int axis, int64_t got, int64_t expected, const char* what) {
      if (got != expected) {
        reader_.mismatch(name, *tensor, 4, axis, got, expected, message("the ", what, " of ", first_).c_str());
      }
    };
    if (!is_packed()) same(0, axes.batch, a_.batch, "batch");
    same(1, axes.rows, a_.total_new, "rows");
    for (const auto& [label, size] : {std::pair{"heads", axes.heads}, std::pair{"head_dim", axes.head_dim}}) {
      if (size < 1) invalid(message(function_, ": ", label, " of ", name, " is ", size, ", expected at least 1"));
    }
    shape = {axes.heads, axes.head_dim};
  }

  void of_dtype(const char* name, DType dtype) const {
    if (dtype == dtype_) return;
    invalid(message(function_, ": ", name, ".dtype is ", core::name(dtype), ", expected ", core::name(dtype_), " = ",
                    first_, ".dtype"));
  }

  // The first cache read says which. Quantised ones have dtypes of their own.
  void cache_dtype(const char* name, DType dtype) const {
    if (first_cache_ != nullptr && dtype != cache_dtype_) {
      invalid(message(function_, ": ", name, ".dtype is ", core::name(dtype), ", expected ", core::name(cache_dtype_),
                      " = ", first_cache_, ".dtype"));
    }
    if (first_cache_ != nullptr || dtype == dtype_) return;
    const bool may_be_quantized = dtype_ != DType::f64;
    const bool is_known = dtype == DType::f8e4m3fn || dtype == DType::i8 || dtype == DType::i4;
    if (may_be_quantized && is_known) return;
    invalid(message(function_, ": ", name, ".dtype is ", core::name(dtype), ", expected ", core::name(dtype_), " = ",
                    first_, ".dtype", may_be_quantized ? ", or f8e4m3fn, i8 or i4" : ""));
  }

  // k or v. The first one read says how many slots or pages there are, and of how many rows.
  void cache(const char* name, const tessella_tensor* tensor, const RowsShape& rows, Operand& operand) {
    if (tensor == nullptr) return;
    const bool is_paged = args_.page_table != nullptr;
    if (is_paged && tensor->ndim != 4) {
      invalid(message(function_, ": ", name, " has ", tensor->ndim,
                      " axes, expected (num_pages, page_size, heads_kv, head_dim) beside page_table"));
    }
    const TensorAxes axes = reader_.attention(name, tensor, false, operand);
    cache_dtype(name, operand.dtype);
    const std::string from = message(name, "_new");
    const auto same = [&](int axis, int64_t got, int64_t expected, const std::string& what) {
      if (got != expected) reader_.mismatch(name, *tensor, 4, axis, got, expected, what.c_str());
    };
    if (first_cache_ == nullptr) {
      first_cache_ = name;
      cache_dtype_ = operand.dtype;
      a_.num_slots = axes.batch;
      a_.seqlen_kv = axes.rows;
      if (is_paged) pages(name, axes);
    }
    same(0, axes.batch, a_.num_slots, message(first_cache_, ".shape[0]"));
    same(1, axes.rows, is_paged ? a_.page_size : a_.seqlen_kv, message("the rows of ", first_cache_));
    same(2, axes.heads, rows.heads, message("the heads of ", from));
    same(3, axes.head_dim, rows.head_dim, message(from, ".shape[-1]"));
    if (operand.dtype == DType::i4 && axes.head_dim % 2 != 0) {
      invalid(message(function_, ": ", name, ".shape[-1] is ", axes.head_dim,
                      ", expected an even number for i4, which has two elements a byte"));
    }
    if (!is_paged && args_.cache_batch_idx == nullptr && axes.batch != a_.batch) {
      reader_.mismatch(name, *tensor, 4, 0, axes.batch, a_.batch, message("the batch of ", from).c_str());
    }
  }

  void pages(const char* name, const TensorAxes& axes) {
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    if (axes.batch < 1 || axes.rows < 1 || axes.batch > kMost || axes.rows > kMost) {
      invalid(message(function_, ": ", name, " has ", axes.batch, " pages of ", axes.rows, " rows, expected 1 to ",
                      kMost, " of each"));
    }
    a_.page_size = axes.rows;
    const tessella_tensor& table = *args_.page_table;
    const int64_t pages = table.ndim >= 1 && table.ndim <= 8 ? table.shape[table.ndim - 1] : 0;
    a_.page_table = reader_.per_row("page_table", table, false, a_.batch, pages, "pages");
    a_.seqlen_kv = std::min(pages, kMost) * a_.page_size;  // validate() reports what is longer
  }

  // Reads the scales of quantized caches and how they are used.
  void scales() {
    const int64_t block = options_.scale_block;
    if (block < 0) invalid(message(function_, ": scale_block is ", block, ", expected at least 0 (all rows)"));
    a_.scale_block = block;
    const bool is_quantized = core::is_quantized(cache_dtype_);
    if (block != 0 && !is_quantized) {
      invalid(message(function_, ": scale_block is ", block, ", expected 0 for a cache of ", core::name(cache_dtype_),
                      ", which has no scales"));
    }
    if (block > 1) {
      unsupported(message(function_, ": scale_block is ", block,
                          ", expected 0 (the scales are given) or 1 (that of each new row is computed): one of "
                          "several rows would change the meaning of those stored before"));
    }
    for (const auto& [name, scale, cache, rows, shape] :
         {std::tuple{"k_scale", args_.k_scale, args_.k, &a_.k_rows, a_.k_new},
          std::tuple{"v_scale", args_.v_scale, args_.v, &a_.v_rows, a_.v_new}}) {
      if (scale != nullptr && !is_quantized) {
        invalid(message(function_, ": ", name, " is given and ", first_cache_, ".dtype is ", core::name(cache_dtype_),
                        ", expected a dtype of 8 or 4 bits"));
      }
      if (scale == nullptr && cache != nullptr && is_quantized) {
        invalid(message(function_, ": ", name, " is NULL, expected ",
                        block != 0 ? "memory for the scales of the new rows: scale_block is 1"
                                   : message("the scales of a cache of ", core::name(cache_dtype_),
                                             " (where it has none, one scale of 1)")));
      }
      if (scale == nullptr) continue;
      const int64_t axes[3] = {a_.num_slots, block == 0 ? 1 : a_.rows_of_slot(), shape.heads};
      rows->scale = reader_.scale(name, *scale, axes);
      const Operand& t = rows->scale;
      const int64_t strides[3] = {t.batch_stride, t.row_stride, t.head_stride};
      const bool is_written = block != 0 && std::find(axes, axes + 3, 0) == axes + 3;
      for (int i = 0; i < 3; ++i) {
        if (!is_written || axes[i] == 1 || strides[i] != 0) continue;
        invalid(message(function_, ": ", name, " has one entry for several rows or heads, expected one for each, (",
                        axes[0], ", ", axes[1], ", ", axes[2], "), as they are written"));
      }
    }
  }

  void queries() {
    if (args_.q == nullptr) return;
    new_rows("q", args_.q, a_.q, a_.q_rows.from);
    const TensorAxes axes = reader_.attention("q_out", args_.q_out, is_packed(), a_.q_rows.into);
    of_dtype("q_out", a_.q_rows.into.dtype);
    const auto same = [&](int axis, int64_t got, int64_t expected, const char* what) {
      if (got != expected) reader_.mismatch("q_out", *args_.q_out, 4, axis, got, expected, what);
    };
    if (!is_packed()) same(0, axes.batch, a_.batch, "q.shape[0]");
    same(1, axes.rows, a_.total_new, "the rows of q");
    same(2, axes.heads, a_.q.heads, "the heads of q");
    same(3, axes.head_dim, a_.q.head_dim, "q.shape[-1]");
  }

  void tables() {
    const auto table = [&](const char* name, const tessella_tensor* tensor, int64_t size, const char* meaning) {
      return tensor == nullptr ? Table<int32_t>() : reader_.table<int32_t>(name, tensor, size, meaning);
    };
    a_.seqlens_kv = table("seqlens_kv", args_.seqlens_kv, a_.batch, "batch");
    a_.seqlens_new = table("seqlens_new", args_.seqlens_new, a_.batch, "batch");
    a_.cu_seqlens_new = table("cu_seqlens_new", args_.cu_seqlens_new, a_.batch + 1, "batch + 1");
    a_.cache_batch_idx = table("cache_batch_idx", args_.cache_batch_idx, a_.batch, "batch");
    a_.leftpad_kv = table("leftpad_kv", args_.leftpad_kv, a_.batch, "batch");
    a_.rotary_offsets = table("rotary_offsets", args_.rotary_offsets, a_.batch, "batch");
  }

  void rotary() {
    if (args_.rotary_cos == nullptr) return;
    const Rotary rotary = read_rotary(reader_, *args_.rotary_cos, *args_.rotary_sin, dtype_, first_);
    a_.cos = rotary.cos;
    a_.sin = rotary.sin;
    a_.positions = rotary.positions;
    a_.rotary_dim = rotary.dim;
    for (const auto& [name, rows] : {std::pair{"k_new", a_.k_new}, std::pair{"q", a_.q}}) {
      if (rows.heads == 0 || a_.rotary_dim <= rows.head_dim) continue;
      invalid(message(function_, ": rotary_cos.shape[1] is ", a_.rotary_dim / 2, ", expected at most ",
                      rows.head_dim / 2, ", half the head_dim of ", name));
    }
  }

  void outputs() const {
    const bool writes_scales = a_.scale_block != 0;
    for (const auto& [label, tensor] :
         {std::pair{"k", args_.k}, std::pair{"v", args_.v}, std::pair{"q_out", args_.q_out},
          std::pair{"k_scale", writes_scales ? args_.k_scale : nullptr},
          std::pair{"v_scale", writes_scales ? args_.v_scale : nullptr}}) {
      reader_.writable(label, tensor);
    }
  }

  void options() {
    for (const auto& [name, value] : {std::pair{"rotary_interleaved", options_.rotary_interleaved},
                                      std::pair{"check_device_values", options_.check_device_values}}) {
      expect_flag(function_, name, value);
    }
    a_.rotary_interleaved = options_.rotary_interleaved != 0;
    if (a_.rotary_interleaved && a_.rotary_dim == 0) {
      invalid(message(function_, ": rotary_interleaved is 1, expected 0 without rotary_cos and rotary_sin"));
    }
    read_resources<Append>(a_, options_, reader_);
    if (options_.max_seqlen_new < 0 || (options_.max_seqlen_new > 0 && options_.max_seqlen_new < a_.total_new)) {
      invalid(message(function_, ": max_seqlen_new is ", options_.max_seqlen_new, ", expected 0 or at least ",
                      a_.total_new, ", the rows of ", first_));
    }
  }

  const Append::Args& args_;
  const Append::Options& options_;
  TensorReader reader_;
  const char* function_;
  const char* first_ = nullptr;  // of the new rows, and of the caches
  const char* first_cache_ = nullptr;
  DType dtype_ = DType::none;
  DType cache_dtype_ = DType::none;
  AppendArguments a_;
};

}  // namespace

AppendArguments Append::read(const Args& args, const Options& options, const Reading& reading) {
  return AppendReader(args, options, reading).run();
}

}  // namespace tessella::core
