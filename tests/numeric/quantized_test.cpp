// k and v of 8 and 4 bits with their scales, on every kernel that takes them.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <tessella/attention.hpp>
#include <vector>

#include "cases/call.hpp"
#include "cases/kernels.hpp"

namespace tessella::tests {
namespace {

class Quantized : public EachKernel {
 protected:
  // Skips a kernel that took none, unless it is one that must.
  static void expect_some(uint64_t num_taken) {
    const std::string& name = GetParam().name;
    const bool must = name == "reference.attention" || name == "cuda.decode" || name.starts_with("cpu.decode");
    EXPECT_TRUE(num_taken > 0 || !must);
    if (num_taken == 0) GTEST_SKIP() << "takes no k and v of 8 or 4 bits";
  }
  // Runs it, and says whether the kernel takes it.
  static bool is_right(const Case& c) {
    const Outcome outcome = run_case(c);
    EXPECT_NE(outcome.verdict, Verdict::failed) << to_string(c) << "\n" << outcome.message;
    return outcome.verdict == Verdict::passed;
  }
};

TEST_P(Quantized, EachDtypeAndScale) {
  uint64_t num_taken = 0;
  for (const char* kv_dtype : {"f8e4m3fn", "i8", "i4"}) {
    for (const char* kv_scale : {"1", "h", "bh", "th", "ph"}) {
      for (const char* dtype : {"bf16", "f16", "f32"}) {
        for (const int64_t page_size : {0, 1, 16}) {
          Case c{.kernel = GetParam().name, .dtype = dtype, .kv_dtype = kv_dtype, .kv_scale = kv_scale, .batch = 2};
          c.heads_q = 6;
          c.heads_kv = 2;
          c.seqlen_q = 2;
          c.seqlen_kv = 150;
          c.head_dim_qk = c.head_dim_v = 64;
          c.window_right = 0;
          c.seqlens_kv = c.leftpad_kv = true;
          c.page_size = page_size;
          c.masked_nan = page_size != 1;
          c.seed = num_taken;
          num_taken += is_right(c) ? 1 : 0;
          if (HasFailure()) return;
        }
      }
    }
  }
  expect_some(num_taken);
}

// With NaN in page 0 and in its scales.
TEST_P(Quantized, EvictedPages) {
  uint64_t num_taken = 0;
  for (const char* kv_dtype : {"f8e4m3fn", "i8", "i4"}) {
    for (const char* kv_scale : {"h", "sh", "bh", "th"}) {
      for (const int64_t page_size : {4, 16}) {
        Case c = parse(
            "dtype=bf16 batch=2 heads_q=6 heads_kv=2 seqlen_q=2 seqlen_kv=150 head_dim_qk=64 head_dim_v=64 "
            "window_left=20 window_right=0 masked_nan=1");
        c.kernel = GetParam().name;
        c.kv_dtype = kv_dtype;
        c.kv_scale = kv_scale;
        c.page_size = page_size;
        c.seed = num_taken;
        num_taken += is_right(c) ? 1 : 0;
        if (HasFailure()) return;
      }
    }
  }
  expect_some(num_taken);
}

// Packed, in slots, with a dense mask that hides keys of NaN, and v in k.
TEST_P(Quantized, RandomCases) {
  // A GPU compiles each for seconds.
  const int num_configurations = GetParam().name.starts_with("cuda.") ? 12 : kDecodeConfigurations;
  uint64_t num_taken = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    Case c = random_quantized_case(seed, GetParam().name, "bf16 f16 f32", num_configurations);
    c.seqlen_kv /= 8;
    c.v_in_k = c.head_dim_v <= c.head_dim_qk && seed % 5 == 0;
    num_taken += is_right(c) ? 1 : 0;
    if (HasFailure()) return;
  }
  expect_some(num_taken);
}

// One query and two keys that are stored as 3, -2 and -1, 4, with a scale of each.
TEST(QuantizedReference, ByHand) {
  const float q[] = {1, 0.5};
  const uint8_t k[] = {0xE3, 0x4F};  // i4, low bits first
  const uint8_t v[] = {0xD4, 0x2F};  // 4, -3 and -1, 2
  const float k_scale[] = {0.5, 0.25}, v_scale[] = {2, 3};
  float out[2], lse;
  const double score[] = {0.5 * (3 - 0.5 * 2), 0.25 * (-1 + 0.5 * 4)};
  const double weight = 1 / (1 + std::exp(score[1] - score[0]));
  forward({.q = view(q, f32, {1, 1, 1, 2}),
           .k = view(k, i4, {1, 2, 1, 2}),
           .v = view(v, i4, {1, 2, 1, 2}),
           .out = view(out, f32, {1, 1, 1, 2}),
           .lse = view(&lse, f32, {1, 1, 1}),
           .k_scale = view(k_scale, f32, {2, 1}),
           .v_scale = view(v_scale, f32, {2, 1})},
          {.scale = 1, .scale_block = 1, .kernel = "reference.attention"});
  EXPECT_NEAR(out[0], weight * 8 - (1 - weight) * 3, 1e-6);
  EXPECT_NEAR(out[1], weight * -6 + (1 - weight) * 6, 1e-6);
  EXPECT_NEAR(lse, std::log(std::exp(score[0]) + std::exp(score[1])), 1e-6);
}

// One key's row is v_scale times 1, 2, 3 and 3.5, and k_scale makes scores of a q that is as small. What a kernel does
// with a scale before it multiplies must not be infinite where the number itself is none; scales are of the call, or of
// tokens, of which the others are small.
TEST_P(Quantized, LargeScales) {
  if (GetParam().name.starts_with("cuda.")) GTEST_SKIP() << "has arrays of the CPU";
  constexpr int64_t kDim = 64, kKeys = 5;
  std::vector<uint8_t> rows(kKeys * kDim);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = std::array<uint8_t, 4>{0x38, 0x40, 0x44, 0x46}[i % 4];
  uint64_t num_taken = 0;
  for (const float large : {0x1p99f, 0x1p100f, 0x1p119f, 0x1p120f, -0x1p121f}) {
    for (const bool is_by_token : {false, true}) {
      std::vector<float> q(kDim), out(kDim), v_scale(is_by_token ? kKeys : 1, 1.0f), k_scale(v_scale.size(), 1.0f);
      q[3] = 0x1.8p-116f;
      // All scores are 168; by token that of the fourth key is, and the others are 0.
      v_scale[is_by_token ? 3 : 0] = large;
      k_scale[is_by_token ? 3 : 0] = 0x1p121f;
      const std::initializer_list<int64_t> scale_shape = {static_cast<int64_t>(v_scale.size()), 1};
      float lse = 0;
      try {
        forward({.q = view(q.data(), f32, {1, 1, 1, kDim}),
                 .k = view(rows.data(), f8e4m3fn, {1, kKeys, 1, kDim}),
                 .v = view(rows.data(), f8e4m3fn, {1, kKeys, 1, kDim}),
                 .out = view(out.data(), f32, {1, 1, 1, kDim}),
                 .lse = view(&lse, f32, {1, 1, 1}),
                 .k_scale = view(k_scale.data(), f32, scale_shape),
                 .v_scale = view(v_scale.data(), f32, scale_shape)},
                {.scale = 1, .scale_block = is_by_token ? 1 : 0, .kernel = GetParam().name});
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), ErrorCode::unsupported) << error.what();
        continue;
      }
      ++num_taken;
      EXPECT_NEAR(lse, is_by_token ? 168 : 168 + std::log(5.0), 1e-4);
      for (int64_t i = 0; i < kDim; ++i) {
        const float expected = large * std::array<float, 4>{1, 2, 3, 3.5}[i % 4];
        ASSERT_NEAR(out[i] / expected, 1, 1e-6) << large << " " << is_by_token << " " << i << " " << out[i];
      }
    }
  }
  expect_some(num_taken);
}

INSTANTIATE_TEST_SUITE_P(Kernels, Quantized, testing::ValuesIn(kernels_of("forward")), kernel_test_name);
INSTANTIATE_TEST_SUITE_P(DecodeKernels, Quantized, testing::ValuesIn(kernels_of("decode")), kernel_test_name);

}  // namespace
}  // namespace tessella::tests
