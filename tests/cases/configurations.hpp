// What a kernel of the GPU is compiled for, as a short list: random cases that keep to it compile little, and differ in
// all that the kernel reads at run time (lengths, batch, heads, strides, windows, packing, padding, sink, LSE).
#pragma once

#include <string>
#include <string_view>

#include "cases/cases.hpp"
#include "portable/element_masks.hpp"

namespace tessella::tests {

struct Configuration {
  std::string dtype;
  int64_t head_dim_qk = 0;
  int64_t head_dim_v = 0;
  bool is_aligned = false;  // rows of q, k and v start at multiples of 16 bytes
  portable::ElementMaskSet element_masks;
  bool softcap = false;
  bool alibi = false;
  bool bias = false;
  bool dropout = false;
  bool paged = false;
  bool lse = false;        // beside a softcap, whose series it decides
  bool long_rows = false;  // tiles for them, by a plan for as many
  bool batch_invariant = false;
  bool need_not_be_deterministic = false;
};

inline constexpr int kUsualConfigurations = 48;

// What the kernels take of all that.
enum class Takes {
  everything,
  copy_engine,  // as Hopper's kernel: whole rows of 16 bytes to head dim 256
  backward,     // to head dim 256, without pages
};

// The same for every seed, for as long as the dtypes stay the same.
Configuration configuration(int idx, std::string_view dtypes, Takes takes);

// The smallest case of it, of forward.
Case smallest_case(const Configuration& configuration, std::string_view kernel);

// random_case() of the same seed with the configuration's choices in place of its own.
Case random_case_of(const Configuration& configuration, uint64_t seed, std::string_view kernel);

}  // namespace tessella::tests
