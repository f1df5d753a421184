// Modifications as source: the header they become, what they may mention, and what the compiler says of them.
#include "cuda/compile/user_source.hpp"

#include <gtest/gtest.h>

#include "cases/arguments.hpp"
#include "core/error.hpp"
#include "cuda/compile/cubin_store.hpp"
#include "cuda/compile/nvrtc.hpp"
#include "cuda/kernels/forward_sm80/config.hpp"
#include "cuda/kernels/forward_sm80/recipe.hpp"
#include "operations/attention/arguments.hpp"

namespace {

using namespace tessella;
using namespace tessella::cuda;
using core::Feature;

TEST(UserSource, IsTheSameForCallsWithoutSource) {
  EXPECT_EQ(user_source(), user_source("", ""));
  EXPECT_NE(user_source().find("{ return score; }"), std::string::npos);
  EXPECT_NE(user_source().find("{ return true; }"), std::string::npos);
}

TEST(UserSource, CountsItsOwnLines) {
  const std::string source = user_source("return score;  // the end", "return k <= q;");
  EXPECT_NE(source.find("#line 1 \"score_mod\"\nreturn score;  // the end\n"), std::string::npos) << source;
  EXPECT_NE(source.find("#line 1 \"mask_mod\"\nreturn k <= q;\n"), std::string::npos) << source;
}

TEST(UserSource, MentionsAreFoundAndDoubtsCount) {
  EXPECT_TRUE(may_mention("b", "b"));
  EXPECT_TRUE(may_mention("return arrays.i32(0)[b*7+q]==0;", "b"));
  EXPECT_TRUE(may_mention("return k<=q;/* whatever b is */", "b"));
  EXPECT_TRUE(may_mention("#define BATCH b\nreturn BATCH;", "b"));
  EXPECT_TRUE(may_mention("#define X(y) y\nreturn k;", "b"));
  EXPECT_TRUE(may_mention("return \\u0062 > 0;", "b"));
  EXPECT_FALSE(may_mention("const bool visible = k <= q; return visible && b1 && _b;", "b"));
  EXPECT_FALSE(may_mention("return arrays.boolean(0)[k];", "b"));
  EXPECT_FALSE(may_mention("", "b"));
}

// What compiling a bf16 call with these sources says, "" if it compiles without spills for the oldest GPUs and Hopper.
std::string problem_of(std::string_view score, std::string_view keep) {
  static CubinStore store(TESSELLA_TEST_CACHE, nvrtc());
  core::AttentionArguments p = tests::gpu_arguments({.head_dim_qk = 128, .head_dim_v = 128});
  if (!score.empty()) p.features |= Feature::score_mod;
  if (!keep.empty()) p.features |= Feature::mask_mod;
  p.score_mod = score;
  p.mask_mod = keep;
  try {
    for (const int arch : {80, 90}) {
      for (const Step& first : forward_sm80_recipe(p, typical_device(arch)).steps) {
        const Step& step = first.if_spilled == nullptr ? first : *first.if_spilled;
        const auto cubin = store.get(step.program, {.arch = arch});
        if (cubin->resources.stack_bytes != 0) return cubin->log;
        if (cubin->log.find("warning") != std::string::npos) return cubin->log;
      }
    }
  } catch (const core::Error& error) {
    EXPECT_EQ(error.code(), core::ErrorCode::compile);
    return error.what();
  }
  return "";
}

class Modification : public testing::Test {
 protected:
  void SetUp() override {
    if (nvrtc() == nullptr) GTEST_SKIP() << nvrtc_problem();
  }
};

TEST_F(Modification, Alibi) {
  EXPECT_EQ(problem_of("const float slope = exp2f(-8.0f * (h + 1) / 32); return score - slope * fabsf(q - k);", ""),
            "");
}

// With the longer tiles of small sources.
TEST_F(Modification, AlibiIsSmall) {
  CubinStore store(TESSELLA_TEST_CACHE, nvrtc());
  core::AttentionArguments p = tests::gpu_arguments({.head_dim_qk = 128, .head_dim_v = 128});
  p.features |= Feature::score_mod;
  const auto longer = for_small_source(forward_sm80_config(p, typical_device(90)), 90);
  ASSERT_TRUE(longer);
  for (const char* distance : {"q - k", "q_minus_k", "float(q) - float(k)"}) {
    const std::string source =
        user_source("return score - arrays.f32(0)[h] * fabsf(" + std::string(distance) + ");", "");
    EXPECT_EQ(store.get(forward_sm80_program(*longer, source), {.arch = 90})->resources.stack_bytes, 0) << distance;
  }
}

TEST_F(Modification, Softcap) { EXPECT_EQ(problem_of("return 30.0f * tanhf(score / 30.0f);", ""), ""); }

TEST_F(Modification, BiasThroughTanh) {
  EXPECT_EQ(problem_of("return score + tanhf(arrays.f32(0)[h * 64 + min(abs(q - k), 63)]);", ""), "");
}

TEST_F(Modification, RelativePositions) {
  EXPECT_EQ(problem_of("const int distance = min(max(k - q, -128), 127) + 128;\n"
                       "return score + arrays.f32(0)[distance];",
                       ""),
            "");
}

TEST_F(Modification, Documents) {
  EXPECT_EQ(problem_of("", "return arrays.i32(0)[b * 4096 + q] == arrays.i32(0)[b * 4096 + k];"), "");
}

TEST_F(Modification, SlidingWindow) { EXPECT_EQ(problem_of("", "return k <= q && q - k < 1024;"), ""); }

TEST_F(Modification, BothAtOnce) {
  EXPECT_EQ(problem_of("return k % 2 == 0 ? score : -score;", "return (q / 64 + k / 64 + h) % 2 == 0;"), "");
}

TEST_F(Modification, ANumberMayBeHalfOrBrain) {
  EXPECT_EQ(problem_of("return arrays.count(0) > q ? score * arrays.f32(0)[q] : score;  // no newline", ""), "");
}

TEST_F(Modification, MistakesAreNamedBySourceAndLine) {
  const std::string score = problem_of("float twice = 2 * score;\nreturn twicee;", "");
  EXPECT_NE(score.find("score_mod(2): error: identifier \"twicee\" is undefined"), std::string::npos) << score;
  const std::string keep = problem_of("", "\n\nreturn k <= ;");
  EXPECT_NE(keep.find("mask_mod(3): error:"), std::string::npos) << keep;
}

}  // namespace
