// Plans: what they are made for, which calls they do not run, and that the choice is explained.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "tessella/attention.hpp"

namespace ts = tessella;

namespace {

struct Tensors {
  explicit Tensors(int64_t seqlen, ts::DType dtype = ts::f32, int64_t head_dim = 16)
      : q(static_cast<size_t>(seqlen * 2 * head_dim), 0.5), out(q.size(), -7.0), lse(static_cast<size_t>(2 * seqlen)) {
    const auto view = [&](std::vector<double>& data) { return ts::view(data.data(), dtype, {1, seqlen, 2, head_dim}); };
    args = {.q = view(q), .k = view(q), .v = view(q), .out = view(out)};
  }
  std::vector<double> q, out;  // room for every dtype; f32 reads finite numbers out of these bytes
  std::vector<float> lse;
  ts::ForwardArgs args;
};

TEST(Plan, ExplainsItsChoice) {
  Tensors t(32);
  const std::string message = ts::plan_forward(t.args, {.mask = ts::Mask::causal()}).explain();
  EXPECT_NE(message.find("batch=1 seqlen_q=32 seqlen_kv=32 heads_q=2"), std::string::npos) << message;
  EXPECT_NE(message.find("features: causal/window"), std::string::npos) << message;
  EXPECT_NE(message.find("kernel: cpu."), std::string::npos) << message;
}

TEST(Plan, DoubleRunsOnVectorsAndBeyondThemOnTheReferenceWhichSaysSo) {
  Tensors t(8, ts::f64);
  EXPECT_EQ(ts::plan_forward(t.args).kernel().substr(0, 11), "cpu.decode_");
  Tensors wide(8, ts::f64, 577);
  const ts::Plan plan = ts::plan_forward(wide.args);
  EXPECT_EQ(plan.kernel(), "reference.attention");
  EXPECT_NE(plan.explain().find("head_dim_qk is 577"), std::string::npos) << plan.explain();
}

TEST(Plan, AForcedKernelRunsOrFailsWithItsReason) {
  Tensors t(8);
  EXPECT_EQ(ts::plan_forward(t.args, {.kernel = "cpu.forward_baseline"}).kernel(), "cpu.forward_baseline");
  Tensors wide(8, ts::f64);
  try {
    ts::plan_forward(wide.args, {.kernel = "reference.flash_2"});
    FAIL();
  } catch (const ts::Error& error) {
    EXPECT_EQ(error.code(), ts::ErrorCode::unsupported);
    EXPECT_STREQ(error.what(),
                 "plan_make: kernel is reference.flash_2, which cannot run this call: does not compute f64");
  }
}

// The message of a call that fails, "" of one that does not.
std::string error_of(const auto& call) {
  try {
    call();
    return "";
  } catch (const ts::Error& error) {
    return error.what();
  }
}

TEST(Plan, AKernelOfAnotherNameIsAskedForByTheNamesThatThereAre) {
  Tensors t(8);
  const std::string message = error_of([&] { ts::plan_forward(t.args, {.kernel = "nope"}); });
  EXPECT_EQ(message.find("plan_make: kernel is \"nope\", expected one of cpu."), 0u) << message;
  EXPECT_NE(message.find("reference.attention"), std::string::npos) << message;
  EXPECT_EQ(message.find("cpu.backward"), std::string::npos) << message;
}

TEST(Plan, TheEnvironmentForcesAKernel) {
  Tensors t(8);
  setenv("TESSELLA_KERNEL", "reference.attention", 1);
  EXPECT_EQ(ts::plan_forward(t.args).kernel(), "reference.attention");
  EXPECT_NE(ts::plan_forward(t.args).explain().find("named by TESSELLA_KERNEL"), std::string::npos);
  Tensors wide(8, ts::f64);
  setenv("TESSELLA_KERNEL", "reference.flash_2", 1);
  EXPECT_EQ(error_of([&] { ts::forward(wide.args); }),
            "forward: TESSELLA_KERNEL is reference.flash_2, which cannot run this call: does not compute f64");
  setenv("TESSELLA_KERNEL", "nope", 1);
  const std::string message = error_of([&] { ts::forward(t.args); });
  EXPECT_EQ(message.find("forward: TESSELLA_KERNEL is \"nope\", expected one of cpu."), 0u) << message;
  EXPECT_EQ(error_of([&] { ts::forward(t.args, {.kernel = "reference.attention"}); }), "");
  unsetenv("TESSELLA_KERNEL");
  EXPECT_NE(ts::plan_forward(t.args).kernel(), "reference.attention");
}

// On the CPU too, which has no values to check.
TEST(Plan, TheEnvironmentsSwitchIsOneOfTwoValues) {
  constexpr const char* kVariable = "TESSELLA_CHECK_DEVICE_VALUES";
  Tensors t(8);
  for (const char* value : {"", "0", "1"}) {
    setenv(kVariable, value, 1);
    EXPECT_EQ(error_of([&] { ts::forward(t.args); }), "") << value;
  }
  for (const char* value : {"2", "yes", " 1"}) {
    setenv(kVariable, value, 1);
    EXPECT_EQ(error_of([&] { ts::forward(t.args); }), std::string(kVariable) + " is '" + value + "', expected 0 or 1");
  }
  unsetenv(kVariable);
}

TEST(Plan, OfTheCpuFollowsNoSchedule) {
  Tensors t(8);
  const ts::Plan plan = ts::plan_forward(t.args);
  EXPECT_EQ(plan.schedule_bytes(), 0u);
  std::vector<int32_t> words(8);
  t.args.schedule = ts::view(words.data(), ts::i32, {8});
  const auto expect = [&](auto&& fn, const std::string& message) {
    try {
      fn();
      ADD_FAILURE() << message;
    } catch (const ts::Error& error) {
      EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
    }
  };
  expect([&] { plan.make_schedule(t.args); },
         "plan_schedule: the plan's kernel, " + plan.kernel() + ", follows no schedule, expected a plan made with one");
  expect([&] { plan.run(t.args); }, "plan_run: schedule is given, and the plan was made without it");
  expect([&] { ts::plan_forward(t.args); }, "plan_make: no forward kernel on the CPU supports schedule");
  size_t bytes = 1;
  EXPECT_EQ(tessella_plan_schedule_size(nullptr, &bytes), TESSELLA_INVALID_ARGUMENT);
  EXPECT_STREQ(tessella_last_error(), "plan_schedule_size: plan is NULL, expected a pointer");
}

// A promise about what is queued before: nothing on the CPU, and no matter of a plan.
TEST(Plan, ASettledCacheChangesNothingOnTheCpu) {
  Tensors t(8);
  ts::forward(t.args);
  const std::vector<double> expected = t.out;
  std::fill(t.out.begin(), t.out.end(), -7.0);
  ts::plan_forward(t.args).run(t.args, {.cache_settled = true}, nullptr);
  EXPECT_EQ(t.out, expected);
  const ts::detail::ForwardCall call(t.args, {});
  tessella_attention_options options = call.options;
  options.cache_settled = 2;
  EXPECT_EQ(tessella_forward(&call.args, &options, nullptr), TESSELLA_INVALID_ARGUMENT);
  EXPECT_STREQ(tessella_last_error(), "forward: cache_settled is 2, expected 0 or 1");
}

TEST(Plan, RunsShorterCallsAndNoLongerOnes) {
  Tensors made(32), shorter(8), longer(33);
  const ts::Plan plan = ts::plan_forward(made.args);
  EXPECT_NO_THROW(plan.run(shorter.args));
  try {
    plan.run(longer.args);
    FAIL();
  } catch (const ts::Error& error) {
    EXPECT_NE(std::string(error.what()).find("plan_run: seqlen_q is 33, expected at most 32"), std::string::npos)
        << error.what();
  }
  const ts::Plan roomy = ts::plan_forward(made.args, {.max_seqlen_q = 64, .max_seqlen_kv = 64});
  EXPECT_NO_THROW(roomy.run(longer.args));
}

// MLA's cache, whose v is in k, is told by addresses, or without memory by strides: what such a plan is for.
TEST(Plan, KnowsALatentCacheWithoutItsMemory) {
  static float memory[2][9 * 2 * 24], q[2 * 24], out[2 * 16];
  const auto arguments = [](int64_t heads, int64_t row_of_v, float* k, float* v) {
    return ts::ForwardArgs{
        .q = ts::view(q, ts::f32, {1, 1, 2, 24}),
        .k = ts::view(k, ts::f32, {1, 9, heads, 24}, {}, {TESSELLA_CPU, 0}),
        .v = ts::view(v, ts::f32, {1, 9, heads, 16}, {9 * row_of_v, row_of_v, row_of_v / heads, 1}, {TESSELLA_CPU, 0}),
        .out = ts::view(out, ts::f32, {1, 1, 2, 16})};
  };
  const auto is_for = [&](const ts::Plan& plan, const ts::ForwardArgs& args) {
    try {
      plan.run(args);
      return true;
    } catch (const ts::Error& error) {
      EXPECT_NE(std::string(error.what()).find("v_in_k"), std::string::npos) << error.what();
      return false;
    }
  };
  for (const bool has_memory : {true, false}) {
    float* k = has_memory ? memory[0] : nullptr;
    const ts::Plan latent = ts::plan_forward(arguments(1, 24, k, k));
    EXPECT_TRUE(is_for(latent, arguments(1, 24, memory[0], memory[0])));
    EXPECT_FALSE(is_for(latent, arguments(1, 24, memory[0], memory[1])));
  }
  ts::ForwardArgs empty = arguments(1, 24, nullptr, nullptr);
  empty.k = ts::view(static_cast<float*>(nullptr), ts::f32, {1, 0, 1, 24}, {}, {TESSELLA_CPU, 0});
  empty.v = ts::view(static_cast<float*>(nullptr), ts::f32, {1, 0, 1, 16}, {}, {TESSELLA_CPU, 0});
  const ts::Plan grown = ts::plan_forward(empty, {.max_seqlen_kv = 9});
  EXPECT_TRUE(is_for(grown, arguments(1, 24, memory[0], memory[0])));
  EXPECT_FALSE(is_for(grown, arguments(1, 24, memory[0], memory[1])));
  // Of several heads too, beside which a v of its own has other strides.
  static float of_heads[9 * 2 * 24];
  const auto empty_for_two = [&](int64_t head_of_v) {
    ts::ForwardArgs args = arguments(2, 2 * head_of_v, nullptr, nullptr);
    args.k = ts::view(static_cast<float*>(nullptr), ts::f32, {1, 0, 2, 24}, {}, {TESSELLA_CPU, 0});
    args.v = ts::view(static_cast<float*>(nullptr), ts::f32, {1, 0, 2, 16}, {0, 2 * head_of_v, head_of_v, 1},
                      {TESSELLA_CPU, 0});
    return ts::plan_forward(args, {.max_seqlen_kv = 9});
  };
  EXPECT_TRUE(is_for(empty_for_two(24), arguments(2, 48, of_heads, of_heads)));
  EXPECT_FALSE(is_for(empty_for_two(24), arguments(2, 48, of_heads, memory[1])));
  EXPECT_TRUE(is_for(empty_for_two(16), arguments(2, 32, of_heads, memory[1])));
  const auto is_for_others = [&](int64_t heads, int64_t row_of_v) {
    const ts::Plan plan = ts::plan_forward(arguments(heads, row_of_v, nullptr, nullptr));
    return is_for(plan, arguments(heads, row_of_v, memory[0], memory[1]));
  };
  EXPECT_TRUE(is_for_others(1, 16));
  EXPECT_TRUE(is_for_others(2, 48));
}

// Plain calls have plans of rounded lengths, which choose as those of their own lengths do.
TEST(Plan, PlainCallsRunWhatAPlanSays) {
  constexpr int64_t kQueries = 20, kDim = 16;
  for (const int64_t keys : {3500, 3584, 3585, 4000, 4096}) {
    std::vector<float> q(kQueries * kDim), k(static_cast<size_t>(keys * kDim)), out(q.size()), expected(q.size());
    for (size_t i = 0; i < q.size(); ++i) q[i] = static_cast<float>(i * 7919 % 1000) / 500 - 1;
    for (size_t i = 0; i < k.size(); ++i) k[i] = static_cast<float>(i * 104729 % 1000) / 500 - 1;
    const auto cache = ts::view(k.data(), ts::f32, {1, keys, 1, kDim});
    const auto args = [&](std::vector<float>& to) {
      return ts::ForwardArgs{.q = ts::view(q.data(), ts::f32, {1, kQueries, 1, kDim}),
                             .k = cache,
                             .v = cache,
                             .out = ts::view(to.data(), ts::f32, {1, kQueries, 1, kDim})};
    };
    const ts::Plan plan = ts::plan_forward(args(expected));
    plan.run(args(expected));
    ts::forward(args(out));
    EXPECT_EQ(out, expected) << keys << " keys, " << plan.kernel();
  }
}

TEST(Plan, RunsNoOtherFeaturesThanItsOwn) {
  Tensors t(8);
  const ts::Plan plan = ts::plan_forward(t.args);
  ts::ForwardArgs with_lse = t.args;
  with_lse.lse = ts::view(t.lse.data(), ts::f32, {1, 2, 8});
  try {
    plan.run(with_lse);
    FAIL();
  } catch (const ts::Error& error) {
    EXPECT_NE(std::string(error.what()).find("plan_run: lse is given, and the plan was made without it"),
              std::string::npos)
        << error.what();
  }
  EXPECT_THROW(plan.run(t.args, {.mask = ts::Mask::causal()}, nullptr), ts::Error);
  EXPECT_NO_THROW(plan.run(t.args, {.scale = 0.5f}, nullptr));
}

TEST(Plan, AShortOrCrookedWorkspaceIsAnError) {
  Tensors t(64);
  const ts::Plan plan = ts::plan_forward(t.args);
  const ts::Workspace size = plan.workspace_size();
  ASSERT_GT(size.scratch_bytes, 0u);
  std::vector<char> memory(size.scratch_bytes + 128);
  char* aligned = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
  EXPECT_NO_THROW(plan.run(t.args, ts::Workspace{nullptr, 0, aligned, size.scratch_bytes}));
  EXPECT_THROW(plan.run(t.args, ts::Workspace{nullptr, 0, aligned, size.scratch_bytes - 1}), ts::Error);
  EXPECT_THROW(plan.run(t.args, ts::Workspace{nullptr, 0, aligned + 4, size.scratch_bytes}), ts::Error);
  EXPECT_THROW(plan.run(t.args, ts::Workspace{nullptr, 0, nullptr, size.scratch_bytes}), ts::Error);
}

TEST(Plan, KernelsDescribeThemselves) {
  ASSERT_GT(tessella_kernel_count(), 5);
  Tensors t(8);
  const ts::detail::ForwardCall call(t.args, {});
  for (int32_t i = 0; i < tessella_kernel_count(); ++i) {
    tessella_kernel_info info = TESSELLA_KERNEL_INFO_INIT;
    ASSERT_EQ(tessella_kernel_describe(i, &info), TESSELLA_OK);
    EXPECT_GT(std::string(info.summary).size(), 0u) << info.name;
    const char* reason = nullptr;
    ASSERT_EQ(tessella_kernel_refusal(i, &call.tagged, &reason), TESSELLA_OK);
    if (std::string(info.operation) != "forward") {
      EXPECT_EQ(reason, std::string("computes ") + info.operation + ", not forward");
    } else if (std::string(info.device) != "cpu") {
      EXPECT_STREQ(reason, "runs on cuda tensors, and q is on the CPU");
    } else if (info.unavailable[0] != '\0') {
      EXPECT_STREQ(reason, info.unavailable);
    }
  }
  tessella_kernel_info info = TESSELLA_KERNEL_INFO_INIT;
  EXPECT_EQ(tessella_kernel_describe(-1, &info), TESSELLA_INVALID_ARGUMENT);
  EXPECT_EQ(tessella_kernel_describe(tessella_kernel_count(), &info), TESSELLA_INVALID_ARGUMENT);
}

}  // namespace
