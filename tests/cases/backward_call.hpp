// A case of backward made real: a forward call with the reference's out and LSE, gradients, and the verdict. A kernel
// of the GPU runs on twins of the tensors, as Call's do.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "cases/call.hpp"
#include "cases/cases.hpp"
#include "tessella/tessella.h"

namespace tessella::tests {

class BackwardCall {
 public:
  // Computes out and LSE.
  explicit BackwardCall(const Case& c);
  BackwardCall(const BackwardCall&) = delete;
  BackwardCall& operator=(const BackwardCall&) = delete;

  tessella_backward_args& args() { return args_; }
  const tessella_backward_args& args() const { return args_; }
  const tessella_attention_options& options() const { return options_; }
  const tessella_call& tagged() const { return tagged_; }
  const Call& forward() const { return forward_; }

  // Runs as the case says. TESSELLA_OK or the failure; the message is tessella_last_error().
  tessella_status run();
  // A plan for it.
  tessella_status make_plan(tessella_plan** plan) const;
  // The memory of all its tensors; only gradients are outputs.
  std::vector<HostBlock> blocks() const;
  void poison_outputs();
  // "" or what was written that is no gradient.
  std::string spoiled() const;
  // "" or what is wrong: `rows` rows (0 = all) against the reference, and nothing written beside the gradients.
  std::string check(int64_t rows = 0) const;
  // Elements of a gradient ("dq", "dk", "dv", "d_bias", "d_sink", "d_alibi_slopes"), in order of its axes.
  std::vector<double> values(const std::string& name) const;
  void set_values(const std::string& name, double value);
  // Every byte of the gradients.
  std::vector<std::byte> results() const;

 private:
  struct Output {
    const char* name;
    Memory memory;
    tessella_tensor tensor{};
  };
  void add_output(const char* name, const tessella_tensor& like, bool is_f32, const tessella_tensor*& to);
  void make_d_out();
  void make_d_lse();
  const Output& output(const std::string& name) const;
  tessella_status run_plain();
  tessella_status run_plan(const tessella_plan* plan);

  Case c_;
  Call forward_;
  Memory d_out_memory_, d_lse_memory_;
  tessella_tensor d_out_{}, d_lse_{};
  std::array<Output, 6> outputs_;
  size_t num_outputs_ = 0;
  std::string spoiled_;
  tessella_backward_args args_ = TESSELLA_BACKWARD_ARGS_INIT;
  tessella_attention_options options_ = TESSELLA_ATTENTION_OPTIONS_INIT;
  tessella_call tagged_{sizeof(tessella_call), TESSELLA_BACKWARD, &args_, &options_};
};

// Builds, runs and checks.
Outcome run_backward_case(const Case& c);

}  // namespace tessella::tests
