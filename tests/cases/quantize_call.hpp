// Calls of quantize and dequantize as data, made real: tensors with poison around and inside them, and the C structs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cases/call_tensors.hpp"
#include "tessella/tessella.h"

namespace tessella::tests {

struct QuantizeCase {
  std::string kernel;  // "" = automatic
  int32_t dtype = TESSELLA_F32;
  int32_t out_dtype = TESSELLA_F8E4M3FN;
  // Which axes of the scales are not 1: of "b" (batch), "n" (blocks) and "h" (heads); "0": no scales, which are given.
  std::string scale = "bnh";
  int64_t scale_block = 0;
  bool given = false;
  bool extremes = false;  // rows and given scales that do not fit each other: not finite, zero, the least, the largest
  int64_t batch = 2;
  int64_t seqlen = 5;  // packed: of the longest sequence
  int64_t heads = 2;
  int64_t head_dim = 64;
  bool packed = false;  // some rows are of no sequence
  bool transposed = false;
  bool hadamard = false;
  bool smooth = false;     // mean is written
  int64_t heads_mean = 0;  // of k_mean; 0: none
  int64_t rotary_dim = 0;  // 0: none
  bool interleaved = false;
  bool f32_angles = true;  // else of the dtype of x
  bool rotary_offsets = false;
  bool heads_first = false;  // x and out are (batch, heads, rows, head_dim) in memory
  int32_t offset = 0;        // elements by which tensors miss their alignment
  int64_t gap = 0;           // elements behind every row of every head
  bool guard = false;        // tensors end where an unreadable page begins
  bool plan = false;
  int32_t num_threads = 0;
  uint64_t seed = 1;
};
std::string to_string(const QuantizeCase& c);

QuantizeCase random_quantize(const std::string& kernel, uint64_t seed);
// Kernels of a GPU have many configurations, of which these cases take few: rows that go through nothing, and three
// that go through other steps, in vectors and element by element.
QuantizeCase random_quantize_of_few(const std::string& kernel, uint64_t seed);

// Immovable: the structs point into it.
class QuantizeCall {
 public:
  explicit QuantizeCall(const QuantizeCase& c);
  QuantizeCall(const QuantizeCall&) = delete;
  QuantizeCall& operator=(const QuantizeCall&) = delete;

  tessella_status run();
  // "" or what is wrong: every row by tessella_check, which has the float64 reference, and not one other byte changed.
  std::string check() const;
  // Makes numbers of what run() has written, of the dtype of x, by the kernel `name`.
  tessella_status run_back(const std::string& name);
  std::string check_back() const;
  // "" or what was written that is no element of an output: for calls whose tables are hostile.
  std::string check_bounds() const { return tensors_.spoiled(written(false)); }
  void remember() { tensors_.remember(); }
  // Every byte of what is written.
  std::vector<std::byte> results() const;

  tessella_quantize_args& args() { return args_; }
  tessella_quantize_options& options() { return options_; }
  tessella_dequantize_args& back_args() { return back_args_; }
  tessella_dequantize_options& back_options() { return back_options_; }
  tessella_call tagged() { return {sizeof(tessella_call), TESSELLA_QUANTIZE, &args_, &options_}; }
  tessella_call tagged_back() { return {sizeof(tessella_call), TESSELLA_DEQUANTIZE, &back_args_, &back_options_}; }
  const QuantizeCase& data() const { return c_; }
  tessella_tensor& x() { return x_->tensor; }
  tessella_tensor& out() { return out_->tensor; }
  tessella_tensor& scale() { return scale_->tensor; }
  tessella_tensor& back() { return back_->tensor; }
  int64_t total() const { return total_; }

 private:
  void fill_rows();
  void fill_scales();
  void angles();
  // Bytes that the call may write; exact: rows of no sequence are none.
  std::vector<Tensors::Written> written(bool exact) const;
  bool exists(int64_t row) const { return !c_.packed || row < cu_.back(); }

  QuantizeCase c_;
  Tensors tensors_;
  int64_t total_ = 0;  // rows of a packed tensor, otherwise of a sequence
  std::vector<int32_t> cu_, offsets_;
  Tensors::Tensor *x_ = nullptr, *out_ = nullptr, *scale_ = nullptr, *mean_ = nullptr, *k_mean_ = nullptr;
  Tensors::Tensor *shift_ = nullptr, *cos_ = nullptr, *sin_ = nullptr, *back_ = nullptr;
  Tensors::Tensor *cu_table_ = nullptr, *offset_table_ = nullptr;
  std::string back_kernel_, spoiled_;
  tessella_quantize_args args_ = TESSELLA_QUANTIZE_ARGS_INIT;
  tessella_quantize_options options_ = TESSELLA_QUANTIZE_OPTIONS_INIT;
  tessella_dequantize_args back_args_ = TESSELLA_DEQUANTIZE_ARGS_INIT;
  tessella_dequantize_options back_options_ = TESSELLA_DEQUANTIZE_OPTIONS_INIT;
};

}  // namespace tessella::tests
