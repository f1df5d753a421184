// The GPU's forward kernels on the CPU (emulator.hpp): their logic, their waits and what they write, against the
// reference, without a GPU. Speed and the hardware's instructions remain for the GPU to show.
//
// Here forward_sm80; forward_sm90 is in emulated_forward_sm90_test.cpp and emulated_forward_sm90_masks_test.cpp.
#include <gtest/gtest.h>

#include <cstdint>
#include <tuple>

#include "cases/backward_features.hpp"
#include "emulated_case.hpp"
#include "emulated_parts.hpp"

namespace tessella::tests {
namespace {

// With NaN in v that nobody sees.
TEST(EmulatedSm80, Masks) {
  for (const char* masks : {"document=1", "dense=bhqk", "draft_mask=b cache_batch_idx=1 masked_nan=1",
                            "key_ranges=bh masked_nan=1 mask_region=20", "query_ranges=b masked_nan=1",
                            "document=1 dense=bhqk draft_mask=b cache_batch_idx=1 masked_nan=1 block_map=hqk block_q=7 "
                            "block_kv=24"}) {
    for (const bool is_causal : {false, true}) {
      for (const int64_t seqlen : {37, 300}) {
        Case c = with_feature(to_string(base(32, 32)), masks);
        c.seqlen_q = c.seqlen_kv = seqlen;
        if (is_causal) c.window_right = 0, c.seqlens_kv = c.seqlens_q = true;
        EXPECT_EQ(run_sm80(c, 1), "") << "--case \"" << to_string(c) << "\"";
      }
    }
  }
}

// Rows of 12 and 24 chunks are copied in parts.
TEST(EmulatedSm80, Plain) {
  for (const auto& [qk, v, is_causal] :
       {std::tuple{32, 32, false}, {32, 32, true}, {96, 96, true}, {192, 128, false}}) {
    Case c = base(qk, v);
    c.window_right = is_causal ? 0 : -1;
    EXPECT_EQ(run_sm80(c, 1), "") << "--case \"" << to_string(c) << "\"";
    c.cache_batch_idx = true;
    EXPECT_EQ(run_sm80(c, 1), "") << "--case \"" << to_string(c) << "\"";
    c.cache_batch_idx = false;
    for (const int64_t page_size : {1, 7, 64}) {
      c.page_size = page_size;
      c.seqlens_kv = c.leftpad_kv = true;
      EXPECT_EQ(run_sm80(c, 1), "") << "--case \"" << to_string(c) << "\"";
    }
  }
}

// Scores of some size, whose rounding fp32 shows; maxima that rise from tile to tile, and sinks beside them.
TEST(EmulatedSm80, LargeBias) {
  for (const double mean : {100.0, -100.0, 1e4}) {
    Case c = base(32, 32);
    c.dtype = "f32";
    c.bias = "bhqk";
    c.bias_mean = mean;
    c.spread = 0.01;
    EXPECT_EQ(run_sm80(c, 1), "") << "--case \"" << to_string(c) << "\"";
    c.sink = true;
    EXPECT_EQ(run_sm80(c, 1), "") << "--case \"" << to_string(c) << "\"";
  }
}

TEST(EmulatedSm80, Dropout) {
  for (const double dropout : {0.3, 0.9999}) {
    Case c = base(64, 64);
    c.dropout = dropout;
    c.memory_seed = dropout > 0.5;
    EXPECT_EQ(run_sm80(c, 1), "") << "--case \"" << to_string(c) << "\"";
  }
}

TEST(EmulatedSm80, BatchInvariant) {
  expect_equal_parts(32, &Case::bias, [](Call& call, const Case&) { return run_sm80(call, 1); });
}

}  // namespace
}  // namespace tessella::tests
