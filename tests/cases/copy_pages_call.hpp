// Copies of pages as data, made real: pools with random bytes around and inside them, the C structs, and the verdict.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cases/call_tensors.hpp"
#include "tessella/tessella.h"

namespace tessella::tests {

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
  // "" or what was written that is no element of a pool: for pairs that are hostile.
  std::string check_bounds() const;
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
