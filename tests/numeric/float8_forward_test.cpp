// q, k, v and out of fp8 with their scales and amax, on every kernel that takes them.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <tessella/attention.hpp>
#include <vector>

#include "cases/call.hpp"
#include "cases/fill_bytes.hpp"
#include "cases/kernels.hpp"
#include "portable/float8.hpp"

namespace tessella::tests {
namespace {

class Float8 : public EachKernel {
 protected:
  void SetUp() override {
    EachKernel::SetUp();
    if (!IsSkipped() && !GetParam().computes("f8e4m3fn")) GTEST_SKIP() << "takes no q of fp8";
  }
  Case base(const char* dtype) const {
    return {.kernel = GetParam().name,
            .dtype = dtype,
            .out_dtype = "bf16",
            .kv_dtype = dtype,
            .kv_scale = "h",
            .q_scale = "h",
            .batch = 2,
            .heads_q = 4,
            .heads_kv = 2,
            .seqlen_q = 20,
            .seqlen_kv = 70,
            .head_dim_qk = 48,
            .head_dim_v = 32,
            .seed = 1};
  }
  // Unless the kernel leaves such calls to the one behind it.
  static void expect_right(const Case& c) {
    const bool writes_float8 = c.out_dtype.starts_with("f8") || !c.amax.empty();
    if (!GetParam().computes(c.dtype) || (writes_float8 && !GetParam().writes_float8())) return;
    const Outcome outcome = run_case(c);
    EXPECT_EQ(outcome.verdict, Verdict::passed) << "--case \"" << to_string(c) << "\"\n  " << outcome.message;
  }
};

TEST_P(Float8, EachScale) {
  for (const char* dtype : {"f8e4m3fn", "f8e5m2"}) {
    for (const char* scale : {"", "1", "h", "sh", "bh", "th"}) {
      for (const int64_t block : {128, 7}) {
        if (block == 7 && std::string(scale) != "bh") continue;
        Case c = base(dtype);
        c.q_scale = c.kv_scale = scale;
        c.scale_block = block;
        c.seqlen_q = c.seqlen_kv = 140;
        c.heads_q = 2;
        c.heads_kv = 1;
        c.window_right = 0;
        expect_right(c);
      }
    }
  }
}

TEST_P(Float8, EachOut) {
  for (const char* dtype : {"f8e4m3fn", "f8e5m2"}) {
    for (const char* out : {"bf16", "f16", "f32", "f8e4m3fn", "f8e5m2"}) {
      for (const char* scale : {"", "1", "h", "sh", "bh", "th"}) {
        Case c = base(dtype);
        c.out_dtype = out;
        if (out[1] == '8') c.out_scale = scale;
        c.amax = scale;
        c.q_scale = c.kv_scale = "1";
        c.seqlens_q = true;  // rows of no query are 0 whatever their scale
        expect_right(c);
      }
    }
  }
}

// The largest numbers, zeros, and NaN in what no query sees.
TEST_P(Float8, HardNumbers) {
  for (const char* dtype : {"f8e4m3fn", "f8e5m2"}) {
    for (const int64_t page_size : {0, 16}) {
      Case c = base(dtype);
      c.outliers = true;
      c.masked_nan = c.seqlens_kv = true;
      c.leftpad_kv = page_size == 0 || GetParam().takes_every_row();
      c.page_size = page_size;
      c.cache_batch_idx = page_size == 0;
      c.window_right = 0;
      c.window_left = 30;
      if (GetParam().writes_float8()) c.amax = "h";
      expect_right(c);
      c.outliers = false;
      c.spread = 40;
      expect_right(c);
    }
  }
}

// v as quantize writes it for Hopper: places behind the last key hold NaN.
TEST_P(Float8, TransposedV) {
  for (const char* dtype : {"f8e4m3fn", "f8e5m2"}) {
    for (const char* scale : {"", "sh", "th"}) {
      Case c = base(dtype);
      c.transposed_v = true;
      c.kv_scale = scale;
      c.seqlen_q = 130;
      c.seqlen_kv = 290;
      c.window_right = 0;
      expect_right(c);
      c.seqlens_kv = true;
      c.leftpad_kv = GetParam().name != "cuda.forward_f8_sm90";
      expect_right(c);
      c.out_dtype = "f8e4m3fn";
      c.amax = "h";
      expect_right(c);
    }
  }
}

TEST_P(Float8, PackedRows) {
  for (const char* scale : {"sh", "bh"}) {
    Case c = base("f8e4m3fn");
    c.packed_q = c.packed_kv = true;
    c.batch = 4;
    c.q_scale = c.kv_scale = c.out_scale = c.amax = scale;
    c.scale_block = 9;
    c.out_dtype = "f8e4m3fn";
    expect_right(c);
  }
}

// One key has half of the weight, and 2^18 keys the rest, of which each has 2^-18 of its probability. Every second row
// of v is 1, that of the key is 0.
TEST_P(Float8, ManyKeysKeepTheirWeightBesideOne) {
  constexpr int64_t kKeys = 1 << 18, kHeadDim = 64, kOneOf = 1000;
  constexpr uint8_t kOne = 0x38, kEighteen = 0x59;  // of f8e4m3fn
  Case c = base("f8e4m3fn");
  c.out_dtype = "f32";
  c.q_scale = c.kv_scale = "";
  c.batch = c.heads_q = c.heads_kv = 1;
  c.seqlen_q = 3;
  c.seqlen_kv = kKeys;
  c.head_dim_qk = c.head_dim_v = kHeadDim;
  c.scale = std::log(2.0);
  Call call(c);
  fill_bytes(*call.args().q, [](int64_t, int64_t d) { return d == 5 ? kOne : uint8_t{0}; });
  fill_bytes(*call.args().k, [](int64_t i, int64_t d) { return i == kOneOf && d == 5 ? kEighteen : uint8_t{0}; });
  fill_bytes(*call.args().v, [](int64_t i, int64_t) { return i % 2 == 1 ? kOne : uint8_t{0}; });
  ASSERT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();
  const auto* out = static_cast<const float*>(call.args().out->data);
  for (int64_t i = 0; i < 3 * kHeadDim; ++i) ASSERT_NEAR(out[i], 0.25, 0.0025) << i;
}

INSTANTIATE_TEST_SUITE_P(Kernels, Float8, testing::ValuesIn(kernels_of("forward")), kernel_test_name);
INSTANTIATE_TEST_SUITE_P(GpuKernels, Float8, testing::ValuesIn(kernels_of("float8")), kernel_test_name);

uint8_t e4m3(float value) { return portable::to_float8(value).bits; }

// One query and two keys.
struct ByHand {
  std::array<uint8_t, 2> q = {e4m3(16), e4m3(-8)};
  std::array<uint8_t, 4> k = {e4m3(2), e4m3(1), e4m3(-4), e4m3(0.5)};
  std::array<uint8_t, 4> v = {e4m3(3), e4m3(-448), e4m3(1), e4m3(0.25)};
  float q_scale = 0.125F, k_scale = 0.5F, v_scale = 2;
  double weight = 0;  // of the first key
  double result[2] = {};
  ByHand() {
    const double scores[] = {(2.0 * 2 - 1.0 * 1) * 0.5, (2.0 * -4 - 1.0 * 0.5) * 0.5};
    weight = 1 / (1 + std::exp(scores[1] - scores[0]));
    result[0] = weight * 6 + (1 - weight) * 2;
    result[1] = weight * -896 + (1 - weight) * 0.5;
  }
  template <typename Out>
  void run(const std::string& kernel, Out* out, DType dtype, const float* out_scale, float* amax) {
    ForwardArgs args{.q = view(q.data(), f8e4m3fn, {1, 1, 1, 2}),
                     .k = view(k.data(), f8e4m3fn, {1, 2, 1, 2}),
                     .v = view(v.data(), f8e4m3fn, {1, 2, 1, 2}),
                     .out = view(out, dtype, {1, 1, 1, 2}),
                     .q_scale = view(&q_scale, f32, {1}),
                     .k_scale = view(&k_scale, f32, {1}),
                     .v_scale = view(&v_scale, f32, {1})};
    if (out_scale != nullptr) args.out_scale = view(out_scale, f32, {1});
    if (amax != nullptr) args.amax = view(amax, f32, {1});
    forward(args, {.scale = 1, .kernel = kernel});
  }
};

TEST(Float8ByHand, OutIsTheResultOfTheDequantisedNumbers) {
  for (const char* kernel : {"reference.attention", "cpu.forward_widened", ""}) {
    ByHand call;
    float out[2], amax = -1;
    call.run(kernel, out, f32, nullptr, &amax);
    EXPECT_NEAR(out[0], call.result[0], 1e-4);
    EXPECT_NEAR(out[1], call.result[1], 1e-2);
    EXPECT_EQ(amax, std::fabs(out[1]));
  }
}

TEST(Float8ByHand, OutOfFloat8IsDividedRoundedAndSaturated) {
  for (const char* kernel : {"reference.attention", "cpu.forward_widened"}) {
    ByHand call;
    for (const float scale : {4.0F, 0.5F, -4.0F, 0.0F, 1e-38F}) {
      uint8_t out[2];
      float amax = -1;
      call.run(kernel, out, f8e4m3fn, &scale, &amax);
      for (int c = 0; c < 2; ++c) {
        const float divisor = std::fabs(scale) < 1e-30F ? std::numeric_limits<float>::infinity() : scale;
        const float expected = portable::to_float(portable::to_float8(static_cast<float>(call.result[c]) / divisor));
        EXPECT_EQ(portable::to_float(portable::Float8E4M3{out[c]}), expected) << kernel << " " << scale;
      }
      EXPECT_NEAR(amax, std::fabs(call.result[1]), 1e-2);
    }
  }
}

// A result of 1.7e-48, of which amax holds nothing.
TEST(Float8ByHand, AmaxBelowFp32) {
  const Outcome outcome = run_case(
      parse("kernel=reference.attention dtype=f64 out_dtype=f8e4m3fn out_scale=bh amax=bh scale_block=3 layout=qkv "
            "heads_q=2 seqlen_q=63 seqlen_kv=2 head_dim_qk=80 head_dim_v=39 packed_q=1 packed_kv=1 draft_mask=b "
            "score_order=kqhb bias=qk bias_mean=-186.10356448664794 scale=0.5797331121943605 sink=1 spread=40 "
            "mean=-1.32852723709426 guard=1 seed=5000079048"));
  EXPECT_EQ(outcome.verdict, Verdict::passed) << outcome.message;
}

// An out that was rounded toward zero, an amax of the rounded out, and one that was never set to 0 before.
TEST(Float8ByHand, TheCheckRefusesWhatIsWrong) {
  Case c{.kernel = "reference.attention", .dtype = "f8e4m3fn", .out_dtype = "f8e4m3fn", .kv_dtype = "f8e4m3fn"};
  c.kv_scale = c.q_scale = c.amax = "h";
  c.out_scale = "1";
  c.heads_q = c.heads_kv = 2;
  c.seqlen_q = c.seqlen_kv = 20;
  c.head_dim_qk = c.head_dim_v = 32;
  Call call(c);
  ASSERT_EQ(call.run(), TESSELLA_OK);
  EXPECT_EQ(call.check(), "");
  auto* amax = static_cast<float*>(call.args().amax->data);
  for (const float factor : {1.5F, 0.5F}) {
    const float right = amax[1];
    amax[1] *= factor;
    EXPECT_NE(call.check().find("amax["), std::string::npos) << call.check();
    amax[1] = right;
  }
  EXPECT_EQ(call.check(), "");
  auto* out = static_cast<uint8_t*>(call.args().out->data);
  out[5] ^= 0x80;
  EXPECT_NE(call.check().find("out["), std::string::npos) << call.check();
  out[5] ^= 0x80;
  out[7] = static_cast<uint8_t>(out[7] ^ 0x10);  // half or twice as much
  EXPECT_NE(call.check().find("out["), std::string::npos) << call.check();
}

}  // namespace
}  // namespace tessella::tests
