// backward through the API: plans, explain, questions, what is wanted alone or added, cancelling, structs that grow.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "cases/backward_call.hpp"
#include "cases/cases.hpp"
#include "cases/kernels.hpp"
#include "cases/small_backward.hpp"

namespace ts = tessella;

namespace tessella::tests {
namespace {

TEST(BackwardApi, EveryKernelWritesWhatIsRightAndInputsMayBeReadOnly) {
  for (const KernelInfo& kernel : kernels_of("backward")) {
    if (!kernel.unavailable.empty() || kernel.is_on_gpu() || !kernel.computes("f32")) continue;
    SmallBackward call;
    call.options.kernel = kernel.name;
    for (ts::TensorView* view : {&call.args.q, &call.args.k, &call.args.v, &call.args.out, &call.args.lse,
                                 &call.args.bias, &call.args.sink, &call.gradients.d_out, &call.gradients.d_lse}) {
      *view = read_only(*view);
    }
    ts::backward(call.args, call.gradients, call.options);
    const tessella_check_report report = ts::check_backward(call.args, call.gradients, call.options, 0);
    EXPECT_NE(report.passed, 0) << kernel.name << ": " << report.worst_tensor << " errs by " << report.max_error;
    EXPECT_EQ(report.rows, kBatch * kSeqlenQ * kHeadsQ) << kernel.name;
    call.dv[3] += 0.01f;
    const tessella_check_report spoiled = ts::check_backward(call.args, call.gradients, call.options, 0);
    EXPECT_EQ(spoiled.passed, 0) << kernel.name;
    EXPECT_STREQ(spoiled.worst_tensor, "dv") << kernel.name;
    EXPECT_EQ(spoiled.worst_index[3], 3) << kernel.name;
  }
}

// The same bits as beside all others; nothing else is written.
TEST(BackwardApi, ComputesWhatIsAskedForAlone) {
  SmallBackward all;
  ts::backward(all.args, all.gradients);
  const std::pair<ts::TensorView ts::Gradients::*, size_t> kAlone[] = {
      {&ts::Gradients::dq, 0},     {&ts::Gradients::dk, 1},     {&ts::Gradients::dv, 2},
      {&ts::Gradients::d_bias, 3}, {&ts::Gradients::d_sink, 4}, {&ts::Gradients::d_alibi_slopes, 5}};
  for (const auto& [member, idx] : kAlone) {
    SmallBackward one;
    ts::Gradients wanted{.d_out = one.gradients.d_out, .d_lse = one.gradients.d_lse};
    wanted.*member = one.gradients.*member;
    ts::backward(one.args, wanted);
    const std::vector<std::vector<float>> got = one.results(), expected = all.results();
    for (size_t n = 0; n < got.size(); ++n) {
      EXPECT_EQ(got[n], n == idx ? expected[n] : std::vector<float>(got[n].size(), kUntouched)) << idx << " " << n;
    }
  }
}

TEST(BackwardApi, AddsToWhatIsThereWhereAsked) {
  SmallBackward alone, added;
  ts::backward(alone.args, alone.gradients);
  added.gradients.accumulate = TESSELLA_DK | TESSELLA_D_SINK;
  ts::backward(added.args, added.gradients);
  EXPECT_EQ(added.dq, alone.dq);
  EXPECT_EQ(added.dv, alone.dv);
  EXPECT_EQ(added.d_bias, alone.d_bias);
  EXPECT_EQ(added.d_slopes, alone.d_slopes);
  for (size_t n = 0; n < added.dk.size(); ++n) EXPECT_NEAR(added.dk[n], alone.dk[n] + kUntouched, 1e-5f) << n;
  for (size_t n = 0; n < added.d_sink.size(); ++n) EXPECT_NEAR(added.d_sink[n], alone.d_sink[n] + kUntouched, 1e-5f);
  try {
    ts::check_backward(added.args, added.gradients, added.options, 0);
    ADD_FAILURE() << "it was checked";
  } catch (const ts::Error& error) {
    EXPECT_STREQ(error.what(), "check: accumulate is 18, expected 0: what was there is gone");
  }
}

TEST(BackwardPlans, ExplainAndRun) {
  SmallBackward plain, planned;
  ts::backward(plain.args, plain.gradients);
  const ts::BackwardPlan plan = ts::plan_backward(planned.args, planned.gradients, {.max_seqlen_q = 100});
  const std::string message = plan.explain();
  for (const char* part : {"operation=backward device=cpu", "batch=2", "seqlen_q=100", "heads_kv=2", "head_dim_qk=8",
                           "d_lse", "d_bias", "d_sink", "d_alibi_slopes", "kernel: cpu.backward_"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " in\n" << message;
  }
  ts::Workspace workspace = plan.workspace_size();
  std::vector<std::byte> memory(workspace.state_bytes + workspace.scratch_bytes + 64, std::byte{0xAA});
  auto address = reinterpret_cast<uintptr_t>(memory.data());
  workspace.state = workspace.scratch = memory.data() + (64 - address % 64) % 64;
  plan.initialize(workspace);
  plan.run(planned.args, planned.gradients, workspace);
  EXPECT_EQ(planned.results(), plain.results());

  // With another scale; with the library's workspace.
  SmallBackward other, other_plain;
  plan.run(other.args, other.gradients, {.scale = 0.125f}, nullptr);
  ts::backward(other_plain.args, other_plain.gradients, {.scale = 0.125f});
  EXPECT_EQ(other.results(), other_plain.results());
  plan.run(other.args, other.gradients);
  EXPECT_EQ(other.results(), plain.results());

  SmallBackward fewer;
  fewer.gradients.d_bias = {};
  try {
    plan.run(fewer.args, fewer.gradients);
    ADD_FAILURE() << "it ran";
  } catch (const ts::Error& error) {
    EXPECT_STREQ(error.what(), "plan_run: d_bias is absent, and the plan was made with it");
  }
  EXPECT_TRUE(fewer.is_untouched());
}

// Beside packed sequences bias may reach to max_seqlen: so does its gradient, with zeros behind the longest sequence.
TEST(BackwardApi, GradientOfABiasBeyondTheLongestSequence) {
  constexpr int64_t kRows = 3, kMost = 5, kWidth = 8;
  const std::vector<float> q(kRows * kWidth, 0.5f), bias(kMost * kMost, 0.25f);
  std::vector<float> out(q.size()), lse(kRows), dv(q.size());
  const std::vector<int32_t> offsets = {0, kRows};
  const auto rows = [&](auto* data) { return ts::view(data, ts::f32, {kRows, 1, kWidth}); };
  const auto of_bias = [&](auto* data) { return ts::view(data, ts::f32, {1, 1, kMost, kMost}); };
  const auto table = ts::view(static_cast<const void*>(offsets.data()), ts::i32, {2});
  const auto* input = static_cast<const void*>(q.data());
  const ts::ForwardArgs args{.q = rows(input),
                             .k = rows(input),
                             .v = rows(input),
                             .out = rows(out.data()),
                             .lse = ts::view(lse.data(), ts::f32, {1, kRows}),
                             .cu_seqlens_q = table,
                             .cu_seqlens_kv = table,
                             .bias = of_bias(static_cast<const void*>(bias.data()))};
  for (const KernelInfo& kernel : kernels_of("backward")) {
    if (!kernel.unavailable.empty() || kernel.is_on_gpu() || !kernel.computes("f32")) continue;
    ts::AttentionOptions options{.max_seqlen_q = kMost, .max_seqlen_kv = kMost};
    ts::forward(args, options);
    std::vector<float> d_bias(bias.size(), 7);
    options.kernel = kernel.name;
    const ts::Gradients gradients{.d_out = rows(input), .dv = rows(dv.data()), .d_bias = of_bias(d_bias.data())};
    ts::backward(args, gradients, options);
    for (int64_t at = 0; at < kMost * kMost; ++at) {
      if (at / kMost < kRows && at % kMost < kRows) {
        EXPECT_NEAR(d_bias[static_cast<size_t>(at)], 0, 1e-6) << kernel.name << " " << at;  // equal values: dP = delta
      } else {
        EXPECT_EQ(d_bias[static_cast<size_t>(at)], 0) << kernel.name << " " << at;
      }
    }
  }
}

TEST(BackwardPlans, KernelsSayWhy) {
  SmallBackward call;
  const ts::detail::BackwardCall of(call.args, call.gradients, call.options);
  for (int32_t idx = 0; idx < tessella_kernel_count(); ++idx) {
    tessella_kernel_info info = TESSELLA_KERNEL_INFO_INIT;
    ASSERT_EQ(tessella_kernel_describe(idx, &info), TESSELLA_OK);
    const char* reason = nullptr;
    ASSERT_EQ(tessella_kernel_refusal(idx, &of.tagged, &reason), TESSELLA_OK) << tessella_last_error();
    const bool is_backward = std::string_view(info.operation) == "backward";
    if (!is_backward) {
      EXPECT_EQ(std::string(reason), std::string("computes ") + info.operation + ", not backward") << info.name;
    } else if (std::string_view(info.device) == "cpu") {
      const bool computes_f32 = std::string_view(info.dtypes).find("f32") != std::string_view::npos;
      EXPECT_STREQ(reason, info.unavailable[0] != '\0' || computes_f32 ? info.unavailable : "does not compute f32")
          << info.name;
    }
    // What backward alone has is no feature of others.
    EXPECT_EQ(std::string_view(info.features).find("d_lse") != std::string_view::npos, is_backward) << info.name;
    EXPECT_EQ(std::string_view(info.features).find("d_bias") != std::string_view::npos, is_backward) << info.name;
  }
}

// d_out may have the dtype of out, which tiles of bf16 would round.
TEST(BackwardPlans, AmxTakesNoF32DOut) {
  BackwardCall call(parse("dtype=bf16 out_dtype=f32 seqlen_q=5 seqlen_kv=6 gradients=qkv"));
  ASSERT_EQ(call.args().d_out->dtype, TESSELLA_F32);
  for (int32_t idx = 0; idx < tessella_kernel_count(); ++idx) {
    tessella_kernel_info info = TESSELLA_KERNEL_INFO_INIT;
    ASSERT_EQ(tessella_kernel_describe(idx, &info), TESSELLA_OK);
    if (std::string_view(info.name) != "cpu.backward_amx") continue;
    if (info.unavailable[0] != '\0') GTEST_SKIP() << info.unavailable;
    const char* reason = nullptr;
    ASSERT_EQ(tessella_kernel_refusal(idx, &call.tagged(), &reason), TESSELLA_OK) << tessella_last_error();
    EXPECT_STREQ(reason, "d_out is f32, expected bf16");
  }
  EXPECT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();
}

class BackwardCancel : public EachKernel {};

// Some seconds of work of one thread whose tensors are small: rows of zeros that all heads have in common.
struct LongCall {
  static constexpr int64_t kLength = 4096, kHeads = 16, kWidth = 64;
  std::vector<float> input = std::vector<float>(kLength * kWidth), lse = std::vector<float>(kHeads * kLength);
  std::vector<float> dv = std::vector<float>(kHeads * kLength * kWidth, kUntouched);
  std::vector<float> dq = dv;
  ts::TensorView rows;
  std::vector<float> out = dv;
  ts::ForwardArgs args{.q = rows,
                       .k = rows,
                       .v = rows,
                       .out = ts::view(out.data(), ts::f32, {1, kLength, kHeads, kWidth}),
                       .lse = ts::view(lse.data(), ts::f32, {1, kHeads, kLength})};
  ts::Gradients gradients{.d_out = rows,
                          .dq = ts::view(dq.data(), ts::f32, {1, kLength, kHeads, kWidth}),
                          .dv = ts::view(dv.data(), ts::f32, {1, kLength, kHeads, kWidth})};

  explicit LongCall(ts::DType dtype)
      : rows(ts::view(input.data(), dtype, {1, kLength, kHeads, kWidth}, {0, kWidth, 0, 1})) {}
};

TEST_P(BackwardCancel, BeforeItNothingIsTouchedAndDuringItItEnds) {
  if (GetParam().is_on_gpu()) GTEST_SKIP() << "a GPU's kernels do not read the flag";
  LongCall call(GetParam().computes("f32") ? ts::f32 : ts::bf16);
  std::atomic<int32_t> flag{1};
  const auto said = [&](int threads) -> std::string {
    try {
      ts::backward(call.args, call.gradients, {.num_threads = threads, .kernel = GetParam().name, .cancel = &flag});
    } catch (const ts::Error& error) {
      EXPECT_EQ(error.code(), ts::ErrorCode::cancelled);
      return error.what();
    }
    return "not cancelled";
  };
  EXPECT_EQ(said(1), "backward: the call was cancelled before it began; nothing was touched");
  EXPECT_EQ(call.dv[0], kUntouched);
  for (const int threads : {1, 3}) {
    std::string last = "before it began";
    // On a busy machine the flag may be set before the call begins, or after it ends.
    for (int tries = 0; tries < 50 && (last == "not cancelled" || last.find("before it began") != last.npos); ++tries) {
      flag = 0;
      std::jthread other([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        flag = 1;
      });
      last = said(threads);
    }
    EXPECT_EQ(last, "backward: the call was cancelled; its outputs hold no result");
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, BackwardCancel, testing::ValuesIn(kernels_of("backward")), kernel_test_name);

// An older program's shorter args mean defaults; a newer one's unknown field is an error.
TEST(BackwardStructs, MayGrow) {
  SmallBackward call;
  const ts::detail::BackwardCall of(call.args, call.gradients, call.options);
  tessella_backward_args older = of.args;
  older.struct_size = offsetof(tessella_backward_args, d_bias);
  EXPECT_EQ(tessella_backward(&older, nullptr, nullptr), TESSELLA_OK) << tessella_last_error();
  EXPECT_NE(call.dq[0], kUntouched);
  EXPECT_EQ(call.d_bias[0], kUntouched);

  struct {
    tessella_backward_args args;
    int64_t unknown;
  } newer{of.args, 1};
  newer.args.struct_size = sizeof newer;
  EXPECT_EQ(tessella_backward(&newer.args, nullptr, nullptr), TESSELLA_UNSUPPORTED);
  EXPECT_NE(std::string_view(tessella_last_error()).find("backward: args sets a field at byte"),
            std::string_view::npos);

  EXPECT_EQ(tessella_backward(nullptr, nullptr, nullptr), TESSELLA_INVALID_ARGUMENT);
  EXPECT_STREQ(tessella_last_error(), "backward: args is NULL, expected a pointer");
  tessella_backward_args without = TESSELLA_BACKWARD_ARGS_INIT;
  EXPECT_EQ(tessella_backward(&without, nullptr, nullptr), TESSELLA_INVALID_ARGUMENT);
  EXPECT_STREQ(tessella_last_error(), "backward: forward is NULL, expected the arguments of the call");
}

}  // namespace
}  // namespace tessella::tests
