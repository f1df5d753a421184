// cuda.forward_f8_sm90 in the emulator, as a call on a GPU runs it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "cases/fill_bytes.hpp"
#include "cuda/kernels/forward_f8_sm90/recipe.hpp"
#include "emulated_run.hpp"

namespace tessella::tests {
namespace {

// Two sequences of 210 queries and 300 keys, two heads on one.
Case base(int64_t head_dim_qk, int64_t head_dim_v) {
  return {.kernel = "reference.attention",
          .dtype = "f8e4m3fn",
          .out_dtype = "bf16",
          .kv_dtype = "f8e4m3fn",
          .kv_scale = "h",
          .q_scale = "h",
          .batch = 2,
          .heads_q = 2,
          .heads_kv = 1,
          .seqlen_q = 210,
          .seqlen_kv = 300,
          .head_dim_qk = head_dim_qk,
          .head_dim_v = head_dim_v,
          .seed = 1};
}

void expect_right(const Case& c, uint64_t seed = 1) {
  Call call(c);
  ASSERT_EQ(run_recipe(call, cuda::forward_f8_sm90_recipe, c.max_seqlen, seed), "")
      << "--case \"" << to_string(c) << "\"";
  EXPECT_EQ(call.check(), "") << "--case \"" << to_string(c) << "\"";
}

using Change = std::function<void(Case&)>;

TEST(EmulatedF8, HeadDims) {
  for (const auto& [qk, v] : {std::pair{64, 64}, {96, 96}, {128, 128}, {128, 64}, {48, 80}, {192, 192}, {256, 256}}) {
    expect_right(base(qk, v));
  }
}

TEST(EmulatedF8, Schedules) {
  for (uint64_t seed = 2; seed < 6; ++seed) {
    Case c = base(128, 128);
    c.window_right = 0;
    expect_right(c, seed);
  }
}

TEST(EmulatedF8, OutDTypes) {
  for (const char* dtype : {"f16", "f32"}) {
    Case c = base(128, 128);
    c.out_dtype = dtype;
    expect_right(c);
  }
}

TEST(EmulatedF8, Scales) {
  for (const char* scale : {"", "1", "h", "sh", "bh", "th"}) {
    for (const int64_t block : {0, 128, 200}) {
      if (block != 0 && scale[0] != 'b') continue;
      Case c = base(64, 64);
      c.kv_scale = c.q_scale = scale;
      c.scale_block = block;
      expect_right(c);
      c.packed_q = c.packed_kv = true;
      expect_right(c);
    }
  }
  Case wide = base(64, 256);
  wide.kv_scale = wide.q_scale = "th";
  expect_right(wide);
}

TEST(EmulatedF8, Outliers) {
  for (const double spread : {0.0, 8.0}) {
    Case c = base(64, 64);
    c.outliers = true;
    c.spread = spread;
    expect_right(c);
  }
}

// Every second factor of the rows of q, or of k, with tiles that are hidden in part.
TEST(EmulatedF8, NegativeFactors) {
  for (const bool of_keys : {false, true}) {
    for (const char* scale : {"h", "bh", "th"}) {
      Case c = base(64, 64);
      c.heads_kv = 2;
      c.q_scale = c.kv_scale = scale;
      c.window_right = 0;
      Call call(c);
      const tessella_tensor& scales = of_keys ? *call.args().k_scale : *call.args().q_scale;
      auto* factors = static_cast<float*>(scales.data);
      for (int64_t i = 0; i < scales.shape[0] * scales.shape[1] * scales.shape[2]; i += 2) factors[i] = -factors[i];
      ASSERT_EQ(run_recipe(call, cuda::forward_f8_sm90_recipe, 0, 1), "");
      EXPECT_EQ(call.check(), "") << to_string(c);
    }
  }
}

// Three queries of one head, whose q has a 1 in column 5 alone.
Case of_one_column(int64_t keys, double scale) {
  Case c = base(64, 64);
  c.out_dtype = "f32";
  c.q_scale = c.kv_scale = "";
  c.batch = c.heads_q = 1;
  c.seqlen_q = 3;
  c.seqlen_kv = keys;
  c.scale = scale;
  return c;
}
constexpr uint8_t kOne = 0x38;
void fill_column(const tessella_tensor& tensor, const std::function<uint8_t(int64_t)>& value) {
  fill_bytes(tensor, [&](int64_t i, int64_t d) { return d == 5 ? value(i) : uint8_t{0}; });
}

// Scores of the first tile lie exponents of 2 above all others', which have values of 1 beside its 0: with frames of
// the row's maximum they would be lost, and with frames of their own tile alone out would be infinite.
TEST(EmulatedF8, TilesFarBelowTheMaximum) {
  constexpr int64_t kKeys = 1280, kHeadDim = 64;
  // Exponents of the key at 7 and of all others.
  struct Scores {
    uint8_t key, others;
    int lag;
  };
  for (const auto& [key, others, lag] : {Scores{0x5A, 0, 20}, {0x7C, 0, 384}, {0, 0xD9, 18}, {0xC8, 0xDC, 20}}) {
    Call call(of_one_column(kKeys, std::log(2.0)));
    fill_column(*call.args().q, [](int64_t) { return kOne; });
    fill_column(*call.args().k,
                [&, of_key = key, of_others = others](int64_t i) { return i == 7 ? of_key : of_others; });
    fill_bytes(*call.args().v, [](int64_t i, int64_t) { return i >= 128 ? kOne : uint8_t{0}; });
    ASSERT_EQ(run_recipe(call, cuda::forward_f8_sm90_recipe, 0, 1), "");
    const double expected = (kKeys - 128) * std::exp2(-lag);
    const auto* out = static_cast<const float*>(call.args().out->data);
    for (int64_t i = 0; i < 3 * kHeadDim; ++i) ASSERT_NEAR(out[i], expected, 0.01 * expected + 1e-30) << lag;
  }
}

// One key has its row to itself, whatever fraction its score has: its probability is not rounded.
TEST(EmulatedF8, TheLargestProbabilityHasNoError) {
  constexpr int64_t kHeadDim = 64;
  constexpr uint8_t kThree = 0x44;
  for (const double scale : {40.0, 41.3, 97.77, 1.2e8, 1.3e8, -1.2e8}) {
    Call call(of_one_column(300, scale));
    fill_column(*call.args().q, [](int64_t) { return kOne; });
    fill_column(*call.args().k, [&](int64_t i) { return (i == 130) == (scale > 0) ? kOne : uint8_t{0}; });
    fill_bytes(*call.args().v, [](int64_t i, int64_t) { return i == 130 ? kThree : kOne; });
    ASSERT_EQ(run_recipe(call, cuda::forward_f8_sm90_recipe, 0, 1), "");
    const auto* out = static_cast<const float*>(call.args().out->data);
    for (int64_t i = 0; i < 3 * kHeadDim; ++i) ASSERT_NEAR(out[i], 3, 1e-5) << scale;
  }
}

TEST(EmulatedF8, Bands) {
  for (const Change& change :
       std::vector<Change>{[](Case& c) { c.window_right = 0; }, [](Case& c) { c.window_left = 90, c.window_right = 4; },
                           [](Case& c) { c.causal_top_left = true; }, [](Case& c) { c.chunk = 70; },
                           [](Case& c) { c.keep_first = 3, c.window_left = 20, c.seqlen_kv = 600; },
                           [](Case& c) { c.window_right = 0, c.seqlen_q = 500, c.seqlen_kv = 130; },
                           [](Case& c) { c.seqlen_kv = 0; }}) {
    Case c = base(64, 64);
    change(c);
    expect_right(c);
    c.masked_nan = true;
    expect_right(c);
  }
}

// A row that holds NaN has NaN as its scale.
TEST(EmulatedF8, UnseenKeysMayHaveNaNAsTheirScales) {
  for (const Change& change :
       std::vector<Change>{[](Case& c) { c.window_left = 90, c.window_right = 4; },
                           [](Case& c) { c.keep_first = 3, c.window_left = 20; }, [](Case& c) { c.dense = "k"; }}) {
    Case c = base(64, 64);
    c.seqlen_q = 100;
    c.kv_scale = "th";
    c.masked_nan = true;
    change(c);
    expect_right(c);
  }
}

TEST(EmulatedF8, Features) {
  for (const Change& change : std::vector<Change>{
           [](Case& c) { c.softcap = 2; }, [](Case& c) { c.alibi = "bh", c.window_right = 0; },
           [](Case& c) { c.bias = "bhqk", c.bias_f32 = true; }, [](Case& c) { c.dropout = 0.3; },
           [](Case& c) { c.sink = true; }, [](Case& c) { c.document = true; },
           [](Case& c) { c.dense = "bhqk", c.masked_nan = true; }, [](Case& c) { c.page_size = 16, c.kv_scale = "sh"; },
           [](Case& c) { c.scale = -0.2; }, [](Case& c) { c.scale = 1e-30; }}) {
    Case c = base(128, 128);
    c.batch = 1;
    change(c);
    expect_right(c);
  }
}

// v as quantize writes it: places behind the last key hold NaN.
TEST(EmulatedF8, TransposedV) {
  for (const Change& change :
       std::vector<Change>{[](Case& c) { c.window_right = 0; }, [](Case& c) { c.seqlen_kv = 128; },
                           [](Case& c) { c.seqlens_kv = true; }, [](Case& c) { c.seqlen_kv = 0; },
                           [](Case& c) { c.packed_q = true, c.kv_scale = "th"; },
                           [](Case& c) { c.window_left = 90, c.window_right = 4, c.masked_nan = true; },
                           [](Case& c) { c.dense = "bhqk", c.masked_nan = true; },
                           [](Case& c) { c.head_dim_v = 80, c.heads_kv = 2; }, [](Case& c) { c.head_dim_v = 256; }}) {
    Case c = base(64, 64);
    c.transposed_v = true;
    change(c);
    expect_right(c);
  }
}

TEST(EmulatedF8, Lengths) {
  for (const Change& change : std::vector<Change>{[](Case& c) { c.packed_q = c.packed_kv = true; },
                                                  [](Case& c) { c.packed_q = c.packed_kv = true, c.window_right = 0; },
                                                  [](Case& c) { c.seqlens_q = c.seqlens_kv = true; },
                                                  [](Case& c) { c.leftpad_kv = true, c.window_right = 0; },
                                                  [](Case& c) { c.cache_batch_idx = c.seqlens_kv = true; }}) {
    for (const uint64_t seed : {1, 2}) {
      Case c = base(64, 64);
      c.batch = 3;
      c.seed = seed;
      change(c);
      expect_right(c);
    }
  }
}

}  // namespace
}  // namespace tessella::tests
