// Calls of linear as data, made real: tensors with poison around and inside them, and the C structs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cases/call_tensors.hpp"
#include "tessella/tessella.h"

namespace tessella::tests {

struct LinearCase {
  std::string kernel;  // "" = automatic
  int32_t dtype = TESSELLA_F32;
  int32_t w_dtype = TESSELLA_F32;
  int32_t out_dtype = TESSELLA_F32;
  int32_t bias_dtype = 0;  // 0: none
  bool residual = false;
  bool in_place = false;  // the residual is out
  bool swiglu = false;
  bool weights_ready = false;
  bool batch_invariant = false;
  int64_t rows = 1;
  int64_t in_features = 64;
  int64_t out_features = 64;
  bool positive = false;  // no sum cancels
  int32_t offset = 0;     // elements by which tensors miss their alignment
  int64_t gap = 0;        // elements behind every row
  bool guard = false;     // tensors end where an unreadable page begins
  bool plan = false;
  int64_t max_rows = 0;
  int32_t num_threads = 0;
  uint64_t seed = 1;
};
std::string to_string(const LinearCase& c);
LinearCase parse_linear(const std::string& line);  // of that

// Changed to what its kernel takes: one of many rows, or of w in the dtype of x alone.
LinearCase supported(LinearCase c);

// dtypes: of the kernel. Sizes that are odd, or whole tiles; at most most_rows rows.
LinearCase random_linear(const std::string& kernel, const std::string& dtypes, uint64_t seed, int64_t most_rows = 70);

// Immovable: the structs point into it.
class LinearCall {
 public:
  explicit LinearCall(const LinearCase& c);
  LinearCall(const LinearCall&) = delete;
  LinearCall& operator=(const LinearCall&) = delete;

  tessella_status run();
  // What run() does before a call.
  void remember();
  // "" or what is wrong: every element by tessella_check, which has the float64 reference, and not one other byte
  // changed.
  std::string check() const;
  // Every byte of out.
  std::vector<std::byte> results() const;

  // As run() gives them to the library: an in-place residual is out.
  tessella_linear_args args() const;
  tessella_linear_options& options() { return options_; }
  const LinearCase& data() const { return c_; }
  tessella_tensor& x() { return x_->tensor; }
  tessella_tensor& w() { return w_->tensor; }
  tessella_tensor& out() { return out_->tensor; }

 private:
  Tensors::Tensor* matrix(int32_t dtype, int64_t rows, int64_t columns, double size, bool is_written = false);

  LinearCase c_;
  Tensors tensors_;
  Tensors::Tensor *x_ = nullptr, *w_ = nullptr, *w_scale_ = nullptr, *bias_ = nullptr, *residual_ = nullptr;
  Tensors::Tensor* out_ = nullptr;
  std::string spoiled_;
  tessella_linear_args args_ = TESSELLA_LINEAR_ARGS_INIT;  // with the residual as it was given
  tessella_linear_options options_ = TESSELLA_LINEAR_OPTIONS_INIT;
};

}  // namespace tessella::tests
