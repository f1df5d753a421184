// Appends as data, made real: tensors with poison around and inside them, the C structs, and the verdict by plain loops
// of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cases/call_tensors.hpp"
#include "tessella/tessella.h"

namespace tessella::tests {

struct AppendCase {
  std::string kernel;  // "" = automatic
  int32_t dtype = TESSELLA_F32;
  int32_t cache_dtype = 0;  // 0: dtype
  // Of quantised caches. Given: "1" one, "h" one a head, "s" one a slot and head. Computed, of every row and
  // head: "th" in a pool of their own, "ph" behind each row in the cache's memory.
  std::string scale;
  bool extremes = false;  // rows and given scales that do not fit each other: not finite, zero, the least, the largest
  int64_t batch = 2;
  int64_t seqlen_new = 3;  // packed: of the longest sequence
  int64_t seqlen_kv = 40;  // rows that a sequence may have, rounded up to whole pages
  int64_t heads_kv = 2;
  int64_t heads_q = 0;  // 0: no q
  int64_t head_dim_qk = 64;
  int64_t head_dim_v = 64;
  bool k = true;
  bool v = true;
  int64_t page_size = 0;     // 0: contiguous
  bool heads_first = false;  // the cache is (slots, heads, rows, head_dim) in memory
  bool slots = false;        // cache_batch_idx
  bool ragged = false;       // seqlens_new
  bool packed = false;       // cu_seqlens_new
  bool leftpad = false;
  int64_t rotary_dim = 0;  // 0: none
  bool interleaved = false;
  bool f32_angles = true;  // else of the dtype of the rows
  bool rotary_offsets = false;
  bool in_place = false;  // q_out is q
  int32_t offset = 0;     // elements by which rows and caches miss their alignment
  int64_t gap = 0;        // elements behind every row of every head
  bool guard = false;     // tensors end where an unreadable page begins
  bool plan = false;
  int32_t num_threads = 0;
  uint64_t seed = 1;
};
std::string to_string(const AppendCase& c);

AppendCase random_append(const std::string& kernel, const std::string& dtypes, uint64_t seed);

// Immovable: the structs point into it.
class AppendCall {
 public:
  explicit AppendCall(const AppendCase& c);
  AppendCall(const AppendCall&) = delete;
  AppendCall& operator=(const AppendCall&) = delete;

  tessella_status run();
  // "" or what is wrong: every new row against plain loops in float64, and not one other byte changed.
  std::string check();
  // tessella_check on tensors in a GPU's memory that hold what these do.
  tessella_check_report check_on_gpu() const;
  // "" or what was written that is no element of a cache or of q_out: for calls whose tables are hostile.
  std::string check_bounds() const;
  void remember() { tensors_.remember(); }
  // Every byte of what is written.
  std::vector<std::byte> results() const;

  tessella_append_args& args() { return args_; }
  tessella_append_options& options() { return options_; }
  tessella_call tagged() { return {sizeof(tessella_call), TESSELLA_APPEND, &args_, &options_}; }
  const AppendCase& data() const { return c_; }
  // Of tables, where given.
  tessella_tensor* table(const std::string& name);
  // The scales of k and v, where given or computed.
  tessella_tensor& k_scale() { return k_scale_; }
  tessella_tensor& v_scale() { return v_scale_; }

 private:
  // fn() on twins of the tensors; "" or what else it changed.
  std::string on_gpu(const std::function<tessella_status(const tessella_append_args&, void* stream)>& fn) const;
  bool is_quantized() const { return cache_dtype() != c_.dtype; }
  bool computes_scales() const { return c_.scale == "th" || c_.scale == "ph"; }
  int32_t cache_dtype() const { return c_.cache_dtype == 0 ? c_.dtype : c_.cache_dtype; }

  AppendCase c_;
  Tensors tensors_;
  std::vector<int32_t> new_, seqlens_, leftpad_, offsets_, cu_, slots_, pages_;
  int64_t pages_of_sequence_ = 0;
  Tensors::Tensor *k_new_ = nullptr, *v_new_ = nullptr, *k_ = nullptr, *v_ = nullptr, *q_ = nullptr, *q_out_ = nullptr;
  Tensors::Tensor *cos_ = nullptr, *sin_ = nullptr;
  tessella_tensor k_view_{}, v_view_{}, k_scale_{}, v_scale_{};  // of caches without what lies behind their rows
  std::vector<std::pair<std::string, Tensors::Tensor*>> tables_;
  std::string spoiled_;
  tessella_append_args args_ = TESSELLA_APPEND_ARGS_INIT;
  tessella_append_options options_ = TESSELLA_APPEND_OPTIONS_INIT;
};

}  // namespace tessella::tests
