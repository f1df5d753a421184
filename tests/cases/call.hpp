// A Case made real: memory with poison around it, the arguments of the C API, and the verdict.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cases/cases.hpp"
#include "cases/gpu_twin.hpp"
#include "cases/memory.hpp"
#include "cases/random.hpp"
#include "portable/band.hpp"
#include "tessella/tessella.h"

namespace tessella::tests {

// Inputs, poisoned outputs and arguments of a case. Immovable: the arguments point into it. A kernel of the GPU runs on
// twins of them; its results are brought back, so that they are checked as any other's.
class Call {
 public:
  explicit Call(const Case& c);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  const tessella_forward_args& args() const { return args_; }
  const tessella_attention_options& options() const { return options_; }

  // Runs as the case says. TESSELLA_OK or the failure; the message is tessella_last_error().
  tessella_status run();
  tessella_status run_plain();
  // Through this plan and a workspace of its own full of NaN. `message` says what the run spoiled, if anything.
  tessella_status run_plan(const tessella_plan* plan, std::string& message) const;
  // A plan for it.
  tessella_status make_plan(tessella_plan** plan) const;
  // The memory of all its tensors.
  std::vector<HostBlock> blocks() const;
  bool is_on_gpu() const { return is_on_gpu_; }
  // What its twins are like.
  bool wants_exact_memory() const { return c_.guard || c_.layout == "huge"; }
  // Else the library finds it out, from any tensor that has an element.
  bool shows_device() const { return c_.seed % 2 == 0 || c_.batch == 0 || (c_.seqlen_q == 0 && c_.seqlen_kv == 0); }

  void poison_outputs();
  // "" or what was written that is not out or lse.
  std::string spoiled() const;
  // "" or what is wrong: `rows` rows (0 = all) against the reference, and nothing written outside of out and lse.
  std::string check(int64_t rows = 0) const;
  // Every byte of out, lse and amax.
  std::vector<std::byte> results() const;

 private:
  struct View {
    Memory memory;
    tessella_tensor tensor{};
  };
  struct Lengths {
    std::vector<int32_t> cu_q, cu_kv, used_q, used_kv, leftpad, pages, slots;
  };
  struct Row {
    int64_t batch, row;  // indices on the first two axes of a tensor
  };

  int64_t rows_q(int64_t b) const;  // slots of a sequence
  int64_t slots_kv(int64_t b) const;
  int64_t first_q(int64_t b) const;  // first row in the tensor
  Row row_kv(int64_t b, int64_t slot) const;
  int64_t key_begin(int64_t b) const;  // the first valid key
  int64_t key_end(int64_t b) const;
  int64_t queries(int64_t b) const;
  portable::Band band(int64_t b) const;  // without prefix lengths
  bool hidden_from_all(int64_t b, int64_t slot) const;

  void make_lengths(Random& random);
  void make_operands(Random& random);
  double drawn(double mean, double spread, Random& random) const;
  void make_keys(Random& random);
  void make_scales(View& rows, View& scales, const std::string& kind, double step, Random& random);
  void make_scale_tensor(const View& rows, View& scales, const std::string& kind);
  void make_scales_of_queries(Random& random);
  void make_masks(Random& random);
  std::optional<bool> of_region(int64_t b, int64_t h, int64_t i, int64_t j) const;
  bool sees(int64_t b, int64_t h, int64_t i, int64_t slot) const;  // the query the key, by all masks
  void spoil_queries_of_no_key();
  void spoil_keys_of_no_query();
  void make_scores(Random& random);
  void make_options();
  void transpose_v();
  void make_pages(Random& random);
  void make_slots(Random& random);
  // batch < 0: packed, without a batch axis. has_gaps: of 16 bytes behind every row of a head.
  void make_view(View& view, int32_t dtype, int64_t batch, int64_t rows, int64_t heads, int64_t dim,
                 bool has_gaps = false);
  // The slots of k that hold a key which some query may see: f(sequence, slot).
  template <typename F>
  void for_each_key(F&& f) const;
  const tessella_tensor* table(std::vector<int32_t>& values);
  const tessella_tensor* own(const tessella_tensor& tensor);
  Placement placement() const;
  const tessella_tensor* ranges(const std::string& axes, bool packed, int64_t rows, int64_t most, uint64_t salt);
  static bool are_in(const tessella_tensor* ranges, int64_t b, int64_t h, int64_t row, int64_t idx);
  // A tensor (batch, heads_q, queries, keys) with the named axes; value(b, h, q, k).
  template <typename Value>
  const tessella_tensor* score_tensor(int32_t dtype, const std::string& axes, int64_t queries, int64_t keys,
                                      Value value);
  std::string spoiled_outside(const View& view, bool is_lse) const;

  Case c_;
  bool is_on_gpu_ = false;
  int64_t total_q_ = 0;
  int64_t total_kv_ = 0;
  int64_t num_pages_ = 0;
  int64_t num_slots_ = 0;
  Lengths lengths_;
  View q_, k_, v_, out_, lse_, q_scale_, k_scale_, v_scale_, out_scale_, amax_;
  std::vector<std::unique_ptr<tessella_tensor>> tensors_;
  std::vector<Memory> memories_;
  std::vector<std::vector<int32_t>> tables_;
  std::vector<int32_t> documents_q_, documents_kv_;
  std::string spoiled_;  // what run() found
  tessella_forward_args args_ = TESSELLA_FORWARD_ARGS_INIT;
  tessella_attention_options options_ = TESSELLA_ATTENTION_OPTIONS_INIT;
};

enum class Verdict { passed, unsupported, failed };
struct Outcome {
  Verdict verdict;
  std::string message;  // what is wrong, or why it is unsupported
};
// Builds, runs and checks.
Outcome run_case(const Case& c);

}  // namespace tessella::tests
