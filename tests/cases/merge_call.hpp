// A merge as data, made real: states with poison around and inside them, the C structs, and the verdict.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cases/call.hpp"
#include "tessella/tessella.h"

namespace tessella::tests {

struct MergeCase {
  std::string kernel;  // "" = automatic
  int32_t dtype = TESSELLA_F32;
  int32_t out_dtype = TESSELLA_F32;
  int32_t num_states = 2;
  int64_t batch = 1;
  int64_t seqlen = 1;
  int64_t heads = 1;
  int64_t head_dim = 64;
  std::string layout = "bshd";  // bhsd; sliced: gaps on every axis; packed: no batch axis; rows: no heads either
  int32_t offset = 0;           // elements by which tensors miss their alignment
  bool repeats = false;         // states have stride 0 on their batch axis
  bool in_place = false;        // out is one of outs, lse one of lses
  bool lse = true;
  bool f64_lse = false;  // beside f64
  double empty = 0.2;    // part of the states' rows that have no key
  bool plan = false;
  bool guard = false;  // tensors end where an unreadable page begins
  int32_t num_threads = 0;
  uint64_t seed = 1;
};
std::string to_string(const MergeCase& c);

// A case of every size, layout and dtype that the kernel takes.
MergeCase random_merge(const std::string& kernel, const std::string& dtypes, uint64_t seed);

// Immovable: the structs point into it.
class MergeCall {
 public:
  explicit MergeCall(const MergeCase& c);
  MergeCall(const MergeCall&) = delete;
  MergeCall& operator=(const MergeCall&) = delete;

  tessella_status run();
  // What run() does around a call in place: the states are remembered before it; after it, results go to out and lse,
  // and the states come back.
  void remember();
  void bring_back();
  // "" or what is wrong: every row against the reference, and nothing written outside of out and lse.
  std::string check();
  // Every element of out and lse.
  std::vector<std::byte> results() const;

  tessella_merge_args& args() { return args_; }
  tessella_merge_options& options() { return options_; }
  // What the structs point to; all else goes by the tensors as they were made.
  tessella_tensor& out() { return out_tensor_; }
  tessella_tensor& lse() { return lse_tensor_; }
  std::vector<tessella_tensor>& outs() { return out_tensors_; }
  std::vector<tessella_tensor>& lses() { return lse_tensors_; }
  // Element (b, row, head, dim) of a state, of out (state -1), of their lse (dim -1).
  std::byte* at(int32_t state, int64_t b, int64_t row, int64_t head, int64_t dim);

 private:
  struct View {
    Memory memory;
    tessella_tensor tensor{};
  };
  View make_view(int32_t dtype, bool is_lse, bool repeats) const;
  // The bytes of a view that are elements.
  std::vector<bool> elements(const View& view, bool is_lse) const;
  std::string spoiled() const;

  MergeCase c_;
  bool is_on_gpu_ = false;
  std::vector<View> outs_, lses_;
  View out_, lse_;
  std::vector<std::vector<std::byte>> before_;  // the memory of every input, when it ran
  std::string spoiled_;
  std::vector<tessella_tensor> out_tensors_, lse_tensors_;
  tessella_tensor out_tensor_{}, lse_tensor_{};
  tessella_merge_args args_ = TESSELLA_MERGE_ARGS_INIT;
  tessella_merge_options options_ = TESSELLA_MERGE_OPTIONS_INIT;
};

}  // namespace tessella::tests
