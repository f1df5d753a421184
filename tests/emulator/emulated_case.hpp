// What the tests of emulated kernels begin with and end in.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>

#include "emulated_run.hpp"

namespace tessella::tests {

// Two sequences of 210 queries and 300 keys, two heads on one.
inline Case base(int64_t head_dim_qk, int64_t head_dim_v) {
  return {.dtype = "bf16",
          .batch = 2,
          .heads_q = 2,
          .heads_kv = 1,
          .seqlen_q = 210,
          .seqlen_kv = 300,
          .head_dim_qk = head_dim_qk,
          .head_dim_v = head_dim_v,
          .seed = 1};
}

// The same in tiles for long rows.
inline Case base_of_long(int64_t head_dim) {
  Case c = base(head_dim, head_dim);
  c.max_seqlen = 8192;
  return c;
}

inline void expect_right(const Case& c, uint64_t seed = 1, Sources sources = Sources::none) {
  EXPECT_EQ(run_sm90(c, seed, nullptr, sources), "") << "--case \"" << to_string(c) << "\"";
}

}  // namespace tessella::tests
