// What the tests of emulated decoding begin with and end in.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/kernels/decode/recipe.hpp"
#include "emulated_run.hpp"

namespace tessella::tests {

// Two sequences of two queries, four heads on one.
inline Case decode_base(int64_t seqlen_kv = 700, int64_t head_dim = 64) {
  Case c{.dtype = "bf16", .batch = 2, .heads_q = 4, .heads_kv = 1, .seqlen_q = 2, .seqlen_kv = seqlen_kv, .seed = 1};
  c.head_dim_qk = c.head_dim_v = head_dim;
  return c;
}

// Right under every schedule of the threads, and of the same bits.
inline void expect_decoded(const Case& c, const Gpu& gpu, MakeRecipe recipe = cuda::decode_recipe, int schedules = 2) {
  std::vector<std::byte> first;
  for (int seed = 1; seed <= schedules; ++seed) {
    Call call(c);
    ASSERT_EQ(run_decode(call, recipe, c.max_seqlen, static_cast<uint64_t>(seed), gpu), "") << to_string(c);
    ASSERT_EQ(call.check(), "") << to_string(c) << " splits " << gpu.num_splits << " scheduled " << gpu.scheduled;
    if (first.empty()) first = call.results();
    ASSERT_TRUE(call.results() == first) << "other bits under schedule " << seed << ", " << to_string(c);
  }
}

}  // namespace tessella::tests
