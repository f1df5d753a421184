// Appends and copies of pages as data, made real: tensors with poison around and inside them, the C structs, and the
// verdict by plain loops of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cases/call.hpp"
#include "tessella/tessella.h"

namespace tessella::tests {

struct AppendCase {
  std::string kernel;  // "" = automatic
  int32_t dtype = TESSELLA_F32;
  int64_t batch = 2;
  int64_t seqlen_new = 3;  // packed: of the longest sequence
  int64_t seqlen_kv = 40;  // rows that a sequence may have, rounded up to whole pages
  int64_t heads_kv = 2;
  int64_t heads_q = 0;  // 0: no q
  int64_t head_dim_qk = 64;
  int64_t head_dim_v = 64;
  bool k = true;
  bool v = true;
  int64_t page_size = 0;      // 0: contiguous
  bool heads_first = false;   // the cache is (slots, heads, rows, head_dim) in memory
  bool slots = false;         // cache_batch_idx
  bool ragged = false;        // seqlens_new
  bool packed = false;        // cu_seqlens_new
  bool leftpad = false;
  int64_t rotary_dim = 0;     // 0: none
  bool interleaved = false;
  bool f32_angles = true;     // else of the dtype of the rows
  bool rotary_offsets = false;
  bool in_place = false;      // q_out is q
  int32_t offset = 0;         // elements by which rows and caches miss their alignment
  int64_t gap = 0;            // elements behind every row of every head
  bool guard = false;         // tensors end where an unreadable page begins
  bool plan = false;
  int32_t num_threads = 0;
  uint64_t seed = 1;
};
std::string to_string(const AppendCase& c);

AppendCase random_append(const std::string& kernel, const std::string& dtypes, uint64_t seed);

// Tensors of a call, their memory, and what they held before it.
class Tensors {
 public:
  struct Tensor {
    Memory memory;
    tessella_tensor tensor{};
    bool is_written = false;
    std::vector<std::byte> before;
  };
  // Filled with poison. gap: elements behind each of the innermost axis; before: elements in front.
  Tensor& add(int32_t dtype, const std::vector<int64_t>& shape, bool heads_first, int64_t gap, int64_t before,
              bool guard, bool is_written);
  Tensor& add_table(const std::vector<int32_t>& values, const std::vector<int64_t>& shape);
  void remember();
  const std::vector<std::unique_ptr<Tensor>>& all() const { return all_; }

 private:
  std::vector<std::unique_ptr<Tensor>> all_;
};

// Immovable: the structs point into it.
class AppendCall {
 public:
  explicit AppendCall(const AppendCase& c);
  AppendCall(const AppendCall&) = delete;
  AppendCall& operator=(const AppendCall&) = delete;

  tessella_status run();
  // "" or what is wrong: every new row against plain loops in double, and not one other byte changed.
  std::string check();
  void remember() { tensors_.remember(); }
  // Every byte of what is written.
  std::vector<std::byte> results() const;

  tessella_append_args& args() { return args_; }
  tessella_append_options& options() { return options_; }
  tessella_call tagged() { return {sizeof(tessella_call), TESSELLA_APPEND, &args_, &options_}; }
  const AppendCase& data() const { return c_; }
  // Of tables, where given.
  tessella_tensor* table(const std::string& name);

 private:

  AppendCase c_;
  Tensors tensors_;
  std::vector<int32_t> new_, seqlens_, leftpad_, offsets_, cu_, slots_, pages_;
  int64_t pages_of_sequence_ = 0;
  Tensors::Tensor *k_new_ = nullptr, *v_new_ = nullptr, *k_ = nullptr, *v_ = nullptr, *q_ = nullptr, *q_out_ = nullptr;
  Tensors::Tensor *cos_ = nullptr, *sin_ = nullptr;
  std::vector<std::pair<std::string, Tensors::Tensor*>> tables_;
  std::string spoiled_;
  tessella_append_args args_ = TESSELLA_APPEND_ARGS_INIT;
  tessella_append_options options_ = TESSELLA_APPEND_OPTIONS_INIT;
};

struct CopyPagesCase {
  std::string kernel;
  int32_t dtype = TESSELLA_BF16;
  int32_t num_pools = 2;
  int64_t num_pages = 12;
  int64_t page_size = 4;
  int64_t heads = 2;
  int64_t head_dim = 64;
  bool heads_first = false;
  int64_t gap = 0;
  int32_t offset = 0;
  bool guard = false;
  int64_t num_pairs = 3;
  int32_t num_threads = 0;
  uint64_t seed = 1;
};
std::string to_string(const CopyPagesCase& c);
CopyPagesCase random_copy_pages(const std::string& kernel, uint64_t seed);

class CopyPagesCall {
 public:
  explicit CopyPagesCall(const CopyPagesCase& c);
  CopyPagesCall(const CopyPagesCall&) = delete;
  CopyPagesCall& operator=(const CopyPagesCall&) = delete;

  tessella_status run();
  // "" or what is wrong: targets hold their sources, and not one other byte changed.
  std::string check();
  void remember() { tensors_.remember(); }

  tessella_copy_pages_args& args() { return args_; }
  tessella_copy_pages_options& options() { return options_; }
  tessella_call tagged() { return {sizeof(tessella_call), TESSELLA_COPY_PAGES, &args_, &options_}; }
  std::vector<tessella_tensor>& pools() { return pool_tensors_; }
  int32_t* pairs() { return static_cast<int32_t*>(pairs_->tensor.data); }
  tessella_tensor& pairs_tensor() { return pairs_->tensor; }

 private:
  CopyPagesCase c_;
  Tensors tensors_;
  std::vector<Tensors::Tensor*> pools_;
  Tensors::Tensor* pairs_ = nullptr;
  std::vector<tessella_tensor> pool_tensors_;
  std::string spoiled_;
  tessella_copy_pages_args args_ = TESSELLA_COPY_PAGES_ARGS_INIT;
  tessella_copy_pages_options options_ = TESSELLA_COPY_PAGES_OPTIONS_INIT;
};

}  // namespace tessella::tests
