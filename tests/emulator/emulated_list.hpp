// What a test's list of emulated kernels is made of: configs, each with what runs its kernel.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "portable/forward_config.hpp"
#include "portable/forward_params.hpp"
#include "portable/forward_sm90.hpp"

namespace tessella::tests {

using portable::ForwardConfig;

// A kernel's config and how it runs.
template <class Params>
struct Emulated {
  ForwardConfig config;
  std::function<void(const Params&, unsigned num_blocks, uint64_t seed)> run;
  std::function<void(const portable::ForwardParams&, unsigned num_blocks, uint64_t seed)> classify;
};
using Sm80 = Emulated<portable::ForwardParams>;
using Sm90 = Emulated<portable::ForwardSm90Params>;

// Those that a test can run; each binary has a list of its own, as every kernel takes seconds to compile.
const std::vector<Sm90>& sm90_kernels();
const std::vector<Sm80>& sm80_kernels();

}  // namespace tessella::tests
