// What only the GPU's kernels of backward do: the caller's source with its gradient, and the same bits in every run.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "cases/backward_call.hpp"
#include "cases/backward_features.hpp"
#include "cases/gpu_kernels.hpp"

namespace tessella::tests {
namespace {

class GpuBackward : public EachKernel {
 protected:
  Case base(const std::string& features) const {
    Case c = with_feature(
        "dtype=bf16 batch=2 heads_q=4 heads_kv=2 seqlen_q=100 seqlen_kv=130 head_dim_qk=64 head_dim_v=64 seed=2",
        features);
    c.kernel = GetParam().name;
    c.gradients = "qkv";
    return c;
  }
};

using Change = std::function<void(tessella_forward_args&, tessella_attention_options&)>;

// Runs the call with its arguments and options changed, and holds what it computes against what the unchanged one
// means.
void expect_same_meaning(const Case& given, const Change& change) {
  const Case c = supported(given);
  const auto message = [&] { return "--case \"" + to_string(c) + "\""; };
  BackwardCall call(c);
  tessella_forward_args forward = *call.args().forward;
  tessella_backward_args args = call.args();
  tessella_attention_options options = call.options();
  args.forward = &forward;
  change(forward, options);
  GpuTwin twin(call.blocks(), false);
  const tessella_backward_args on_gpu = twin.args(args, true);
  ASSERT_EQ(tessella_backward(&on_gpu, &options, twin.stream()), TESSELLA_OK) << tessella_last_error() << message();
  ASSERT_EQ(twin.download(), "") << message();
  EXPECT_EQ(call.check(), "") << message();
}

TEST_P(GpuBackward, AScoreModMayBeAlibi) {
  for (const char* masks : {"", "window_right=0", "document=1", "dropout=0.3"}) {
    Case c = base(std::string("alibi=h seqlen_kv=100 ") + masks);  // as many keys: the distance needs no lengths
    expect_same_meaning(c, [](tessella_forward_args& args, tessella_attention_options& options) {
      args.mod_args = args.alibi_slopes;
      args.num_mod_args = 1;
      args.alibi_slopes = nullptr;
      options.score_mod = "return score - arrays.f32(0)[h] * fabsf(q_minus_k);";
      options.score_mod_gradient = "return d_score;";
    });
  }
}

TEST_P(GpuBackward, AScoreModMayBeSoftcap) {
  for (const char* features : {"softcap=2", "softcap=2 window_right=0 dropout=0.2", "softcap=2 scale=-0.3"}) {
    expect_same_meaning(base(features), [](tessella_forward_args&, tessella_attention_options& options) {
      options.softcap = 0;
      options.score_mod = "return 2.0f * tanhf(score / 2.0f);";
      options.score_mod_gradient = "const float t = tanhf(score / 2.0f); return d_score * (1 - t * t);";
    });
  }
}

TEST_P(GpuBackward, AMaskModMayBeCausal) {
  for (const char* features : {"", "dropout=0.3", "sink=1 bias=hk"}) {
    Case c = base(std::string("window_right=0 ") + features);
    expect_same_meaning(c, [](tessella_forward_args&, tessella_attention_options& options) {
      options.window_right = -1;
      options.mask_mod = "return k <= q + 30;";  // 30 keys more than queries
    });
  }
}

TEST_P(GpuBackward, AScoreModWithoutItsGradientIsAnError) {
  BackwardCall call(base(""));
  tessella_attention_options options = call.options();
  options.score_mod = "return 0.5f * score;";
  GpuTwin twin(call.blocks(), false);
  const tessella_backward_args on_gpu = twin.args(call.args(), true);
  EXPECT_NE(tessella_backward(&on_gpu, &options, twin.stream()), TESSELLA_OK);
  EXPECT_NE(std::string(tessella_last_error()).find("score_mod_gradient"), std::string::npos) << tessella_last_error();
}

// What blocks do at what time decides no bit: tiles of keys take turns at a query's gradient, and there are more of
// them than multiprocessors.
class GpuBackwardRuns : public GpuBackward {
 protected:
  static int runs() {
    const char* repeats = std::getenv("TESSELLA_TEST_REPEATS");
    return repeats == nullptr ? 1000 : std::atoi(repeats);
  }
  void expect_same_bits(int64_t head_dim, const std::string& features) const {
    const std::string heads =
        "heads_kv=" + std::to_string(512 / head_dim) + " heads_q=" + std::to_string(512 / head_dim * 2);
    const std::string dims = " head_dim_qk=" + std::to_string(head_dim) + " head_dim_v=" + std::to_string(head_dim);
    Case c = with_feature(heads + dims + " dtype=bf16 batch=8 seqlen_q=300 seqlen_kv=1100 seed=2", features);
    c.kernel = GetParam().name;
    if (to_string(c) != to_string(supported(c))) GTEST_SKIP() << c.kernel << " does not support " << features;
    BackwardCall call(c);
    GpuTwin twin(call.blocks(), false);
    const tessella_backward_args args = twin.args(call.args(), true);
    std::vector<std::byte> expected;
    for (int run = 0; run < runs(); ++run) {
      twin.poison_outputs();
      ASSERT_EQ(tessella_backward(&args, &call.options(), twin.stream()), TESSELLA_OK) << tessella_last_error();
      const std::vector<std::byte> got = twin.outputs();
      if (run == 0) expected = got;
      ASSERT_TRUE(got == expected) << "run " << run << " has other bits than the first";
    }
    ASSERT_EQ(twin.download(), "");
    EXPECT_EQ(call.check(40), "") << to_string(c);
  }
};

TEST_P(GpuBackwardRuns, PlainHaveTheSameBits) { expect_same_bits(64, ""); }
TEST_P(GpuBackwardRuns, CausalHaveTheSameBits) { expect_same_bits(128, "window_right=0"); }
TEST_P(GpuBackwardRuns, GroupsHaveTheSameBits) { expect_same_bits(32, "window_right=0 heads_kv=8"); }
TEST_P(GpuBackwardRuns, PackedHaveTheSameBits) { expect_same_bits(96, "packed_q=1 packed_kv=1 window_right=5"); }
TEST_P(GpuBackwardRuns, DropoutHasTheSameBits) { expect_same_bits(192, "dropout=0.2 window_right=0"); }
TEST_P(GpuBackwardRuns, WideHaveTheSameBits) { expect_same_bits(256, "window_right=0"); }
TEST_P(GpuBackwardRuns, BiasesHaveTheSameBits) { expect_same_bits(64, "bias=hk"); }
TEST_P(GpuBackwardRuns, SlopesHaveTheSameBits) { expect_same_bits(128, "alibi=h"); }
TEST_P(GpuBackwardRuns, DocumentsHaveTheSameBits) { expect_same_bits(64, "document=1"); }
TEST_P(GpuBackwardRuns, HalvesHaveTheSameBits) { expect_same_bits(128, "dtype=f16 softcap=20 scale=-0.1"); }
TEST_P(GpuBackwardRuns, NarrowDropoutHasTheSameBits) { expect_same_bits(64, "dropout=0.2 window_right=0"); }
TEST_P(GpuBackwardRuns, CappedBiasesHaveTheSameBits) { expect_same_bits(128, "softcap=20 bias=hk"); }
TEST_P(GpuBackwardRuns, ChunksHaveTheSameBits) { expect_same_bits(128, "chunk=200"); }
TEST_P(GpuBackwardRuns, FirstKeysHaveTheSameBits) {
  expect_same_bits(64, "window_left=100 window_right=0 keep_first=5");
}
TEST_P(GpuBackwardRuns, WindowsHaveTheSameBits) { expect_same_bits(80, "dtype=f16 window_left=150 window_right=30"); }
TEST_P(GpuBackwardRuns, FloatsHaveTheSameBits) { expect_same_bits(64, "dtype=f32 window_left=200"); }
TEST_P(GpuBackwardRuns, SinksHaveTheSameBits) {
  expect_same_bits(96, "sink=1 d_lse=1 seqlens_q=1 seqlens_kv=1 leftpad_kv=1");
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GpuBackward);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GpuBackwardRuns);
INSTANTIATE_TEST_SUITE_P(Kernels, GpuBackward, testing::ValuesIn(gpu_kernels("backward")), kernel_test_name);
INSTANTIATE_TEST_SUITE_P(Kernels, GpuBackwardRuns, testing::ValuesIn(gpu_kernels("backward")), kernel_test_name);

TEST(GpuBackwardChoice, IsMadeForCudaTensors) {
  if (const std::string problem = gpu_arguments(); !problem.empty()) GTEST_SKIP() << problem;
  if (gpu_kernels("backward").empty()) GTEST_SKIP() << "no kernel of backward in this build";
  for (const char* dtype : {"bf16", "f16", "f32"}) {
    Case c{.device = "cuda", .dtype = dtype, .seqlen_q = 60, .head_dim_qk = 64, .head_dim_v = 64};
    c.gradients = "qkv";
    const Outcome outcome = run_case(c);
    EXPECT_EQ(outcome.verdict, Verdict::passed) << dtype << ": " << outcome.message;
  }
}

}  // namespace
}  // namespace tessella::tests
