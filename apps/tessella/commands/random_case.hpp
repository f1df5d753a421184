// A call over random inputs: what bench, ladder and kernels --why run.
#pragma once

#include <cstdint>
#include <random>
#include <string>

#include "options/attention_options.hpp"
#include "options/call.hpp"

namespace tessella::cli {

struct RandomCase {
  tessella_dtype dtype = TESSELLA_F32;
  int64_t batch = 1;
  int64_t heads_q = 1;
  int64_t heads_kv = 1;
  int64_t seqlen_q = 0;
  int64_t seqlen_kv = 0;
  int64_t head_dim = 64;
  std::string mask = "none";
  bool is_backward = false;

  const char* operation() const { return is_backward ? "backward" : "forward"; }
  // 4 * b * h * sq * skv * d, 2.5 times that of backward, which has five products for two; causal counts half, as every
  // paper of the family does.
  double flops() const;
};

// Normal numbers, of which not every one is drawn by itself.
void fill_normal(Array& array, std::mt19937_64& random);

// "16", or "32/8": query heads over KV heads.
void parse_heads(std::string_view what, const std::string& string, int64_t& heads_q, int64_t& heads_kv);

// q, k, v and out, on the device of the options; of backward the gradients too, behind a forward that ran. `fill` false
// leaves zeros and runs nothing, for questions that do not read them.
Call make_random_call(const RandomCase& random_case, const AttentionOptionValues& options, bool fill = true);

}  // namespace tessella::cli
