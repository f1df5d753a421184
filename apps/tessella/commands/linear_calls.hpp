// Calls of one layer of `linear` over copies of its weights, each of which is one call's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "commands/weight_shapes.hpp"
#include "device/memory.hpp"

namespace tessella::cli {

struct LinearLayer {
  WeightShape w;
  tessella_dtype dtype = TESSELLA_BF16;    // of x and out
  tessella_dtype w_dtype = TESSELLA_BF16;  // of w; of 8 bits it has a scale a row
  bool is_gated = false;                   // SwiGLU
  int64_t most_rows = 1;                   // of x
  int32_t num_threads = 0;

  int64_t out_features() const { return is_gated ? w.rows / 2 : w.rows; }
};

// How the calls lie in memory.
struct LinearCallsLayout {
  LinearCallsLayout(const LinearLayer& layer, const Placement& placement);

  size_t weight_bytes;   // that a call reads
  size_t weight_stride;  // from a call's weights to the next one's
  int64_t num_calls;     // whose weights no GPU or CPU keeps near itself all at once
  size_t x_bytes, out_bytes;

  double total_bytes() const;
};

class LinearCalls {
 public:
  // Throws std::bad_alloc or Error(out_of_memory).
  LinearCalls(const LinearLayer& layer, const Placement& placement);
  LinearCalls(const LinearCalls&) = delete;
  LinearCalls& operator=(const LinearCalls&) = delete;

  // So many rows of x, by a kernel that outlives the calls or, for NULL, by the library's choice; out becomes NaN.
  void begin(int64_t rows, const char* kernel);

  int64_t size() const { return layout_.num_calls; }
  tessella_call at(int64_t idx) const;

  const LinearCallsLayout& layout() const { return layout_; }
  const Memory& weights() const { return w_; }  // one call's after another's

 private:
  void fill() const;

  LinearLayer layer_;
  LinearCallsLayout layout_;
  Memory w_, w_scale_, x_, out_;
  tessella_tensor x_tensor_ = {}, out_tensor_ = {}, scale_tensor_ = {};
  std::deque<tessella_tensor> w_tensors_;
  std::deque<tessella_linear_args> args_;
  tessella_linear_options options_ = TESSELLA_LINEAR_OPTIONS_INIT;
};

}  // namespace tessella::cli
