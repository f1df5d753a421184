// A Llama's decoder: a prompt goes into the cache at once, then every sequence grows by a token a step.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <tessella/attention.hpp>
#include <tessella/linear.hpp>
#include <tessella/paged_cache.hpp>

#include "checkpoint.hpp"
#include "device.hpp"

struct Sampling {
  float temperature = 0;  // 0: the likeliest token
  float top_p = 1;
  uint64_t seed = 0;
};

class Model {
 public:
  // For so many sequences of at most `most_tokens` tokens each, prompts included; the cache holds them all.
  Model(const Checkpoint& checkpoint, tessella::DType dtype, int64_t num_sequences, int64_t most_tokens,
        const Sampling& sampling, Device& device);
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // The token behind a prompt, which is the start of a sequence.
  int32_t start(int64_t sequence, const std::vector<int32_t>& prompt);
  // Adds the token that each sequence had last, and returns the next one of each.
  std::vector<int32_t> step();

 private:
  struct Layer {
    Memory attention_norm, mlp_norm;     // (hidden)
    Memory qkv, out, gate_and_up, down;  // (out_features, in_features)
  };
  // The rows of some sequences, the same number of each.
  struct Rows {
    int64_t first, sequences, tokens;  // of each sequence
    const int32_t* ids;                // on the device
    bool are_a_step;
  };
  // A kernel that was chosen once for the steps, with its workspace.
  template <typename Plan>
  struct Planned {
    Plan plan;
    Memory state, scratch;
    tessella::Workspace workspace;
  };
  enum Product { kQkv, kOut, kGateAndUp, kDown, kHead, kProducts };

  void run(const Rows& rows);
  void attend(const Rows& rows, int layer);
  void make_schedule(const Rows& rows);
  void multiply(Product product, const Rows& rows, const tessella::LinearArgs& args);
  tessella::ForwardArgs attention_args(const Rows& rows, int layer) const;
  // normal_ of rows of hidden_, the first of which is `first`, `step` apart.
  void normalize(const Memory& weight, int64_t first, int64_t step, int64_t count);
  void choose(int64_t first, int64_t count);
  template <typename Plan>
  Planned<Plan> with_workspace(Plan plan);
  // Matrices of so many rows each below each other, as one: a call reads it at the full rate of the memory.
  Memory weights(const Checkpoint& checkpoint, const std::vector<std::pair<std::string, int64_t>>& matrices,
                 int64_t columns);
  Memory vector(const Checkpoint& checkpoint, const std::string& name);
  template <typename T>
  Memory uploaded(const std::vector<T>& values);
  Memory elements(int64_t rows, int64_t columns);
  static int32_t* ids(const Memory& memory) { return reinterpret_cast<int32_t*>(memory.get()); }
  static constexpr int64_t kPageSize = 16;
  int64_t page_columns() const { return (most_tokens_ + kPageSize - 1) / kPageSize; }  // of the page table
  int64_t qkv_columns() const { return (config_.heads + 2 * config_.heads_kv) * config_.head_dim; }
  // Elements from number `first` on.
  tessella::TensorView view(const Memory& memory, std::initializer_list<int64_t> shape,
                            std::initializer_list<int64_t> strides = {}, int64_t first = 0) const;
  // Of i32 and f32, for sequences from number `first` on.
  tessella::TensorView view(const Memory& memory, tessella::DType dtype, std::initializer_list<int64_t> shape,
                            int64_t first = 0) const;

  Device& device_;
  const Config config_;
  const tessella::DType dtype_;
  const int64_t num_sequences_, most_tokens_;
  const Sampling sampling_;
  Memory embedding_, norm_, head_;
  std::vector<Layer> layers_;
  std::vector<Memory> pools_;  // k and v of each layer
  std::optional<tessella::PagedCache> cache_;
  std::vector<int64_t> ids_;
  Memory page_table_, lengths_, tokens_, prompt_, cosines_, sines_, schedule_;
  int64_t schedule_size_ = 0;
  Memory hidden_, normal_, qkv_, attended_, inner_, logits_;
  std::array<std::optional<Planned<tessella::LinearPlan>>, kProducts> products_;
  std::optional<Planned<tessella::AppendPlan>> append_;
  std::optional<Planned<tessella::Plan>> attention_;
  std::function<void()> step_;
};
