// merge through the API: every error with its code and sentence, plans, explain, questions, C++.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cases/merge_call.hpp"
#include "cases/tensor_places.hpp"
#include "tessella/merge.hpp"

namespace ts = tessella;

namespace {

using namespace tessella::tests;

MergeCase base() { return {.num_states = 3, .batch = 2, .seqlen = 5, .heads = 4, .head_dim = 8}; }

struct ExpectedError {
  const char* name;
  std::function<void(MergeCall&)> spoil;
  tessella_status status;
  const char* message;  // part of the message
};

constexpr auto kInvalid = TESSELLA_INVALID_ARGUMENT;

void set(tessella_tensor& t, int axis, int64_t size) { t.shape[axis] = size; }

const ExpectedError kErrors[] = {
    {"no_states", [](MergeCall& c) { c.args().num_states = 0; }, kInvalid,
     "merge: num_states is 0, expected at least 1"},
    {"outs_absent", [](MergeCall& c) { c.args().outs = nullptr; }, kInvalid,
     "merge: outs is NULL, expected num_states tensors"},
    {"lses_absent", [](MergeCall& c) { c.args().lses = nullptr; }, kInvalid, "merge: lses is NULL"},
    {"out_absent", [](MergeCall& c) { c.args().out = nullptr; }, kInvalid, "merge: out is NULL, expected a tensor"},
    {"out_without_memory", [](MergeCall& c) { c.out().data = nullptr; }, kInvalid,
     "merge: out.data is NULL, expected memory"},
    {"batch", [](MergeCall& c) { set(c.outs()[1], 0, 1); }, kInvalid,
     "merge: outs[1].shape[0] is 1, expected 2 = the batch of outs[0] (layout batch, seqlen, heads, head_dim)"},
    {"rows", [](MergeCall& c) { set(c.outs()[2], 1, 4); }, kInvalid,
     "merge: outs[2].shape[1] is 4, expected 5 = the rows of outs[0]"},
    {"heads", [](MergeCall& c) { set(c.out(), 2, 3); }, kInvalid,
     "merge: out.shape[2] is 3, expected 4 = the heads of outs[0]"},
    {"head_dim", [](MergeCall& c) { set(c.out(), 3, 7); }, kInvalid,
     "merge: out.shape[3] is 7, expected 8 = the head_dim of outs[0]"},
    {"head_dim_strided", [](MergeCall& c) { c.outs()[1].strides[3] = 2; }, kInvalid,
     "merge: outs[1].strides[3] is 2, expected 1: head_dim must be contiguous"},
    {"lse_shape", [](MergeCall& c) { set(c.lses()[1], 2, 4); }, kInvalid,
     "merge: lses[1] has shape (2, 4, 4), expected (2, 4, 5) = (batch, heads, seqlen)"},
    {"result_lse_shape", [](MergeCall& c) { c.lse().ndim = 2; }, kInvalid,
     "merge: lse has shape (2, 4), expected (2, 4, 5) = (batch, heads, seqlen)"},
    {"dtypes_differ", [](MergeCall& c) { c.outs()[2].dtype = TESSELLA_BF16; }, kInvalid,
     "merge: outs[2].dtype is bf16, expected f32 = outs[0].dtype"},
    {"integers", [](MergeCall& c) { c.outs()[0].dtype = TESSELLA_I32; }, kInvalid,
     "merge: outs[0].dtype is i32, expected f64, f32, bf16 or f16"},
    {"out_dtype", [](MergeCall& c) { c.out().dtype = TESSELLA_I32; }, kInvalid,
     "merge: out.dtype is i32, expected f32 = outs[0].dtype, or bf16 or f16"},
    {"lse_dtype", [](MergeCall& c) { c.lses()[0].dtype = TESSELLA_F16; }, kInvalid,
     "merge: lses[0].dtype is f16, expected f32"},
    {"read_only", [](MergeCall& c) { c.out().flags = TESSELLA_READ_ONLY; }, kInvalid,
     "merge: out is read-only, expected memory that may be written"},
    {"folded", [](MergeCall& c) { c.out().strides[0] = 0; }, kInvalid,
     "merge: out has an axis of stride 0, expected at least 8 so that no two elements share memory"},
    {"overlaps",
     [](MergeCall& c) {
       c.out() = c.outs()[1];
       c.out().data = static_cast<char*>(c.out().data) + 4;
     },
     kInvalid, "merge: out overlaps outs[1], expected memory of its own, or the same view"},
    {"overlaps_in_another_order",
     [](MergeCall& c) {
       c.out() = c.outs()[1];
       std::swap(c.out().strides[0], c.out().strides[2]);
       c.out().strides[0] = 8 * 20;  // of 2 batches, heads apart
       c.out().strides[2] = 8 * 5;
       c.out().strides[1] = 8;
     },
     kInvalid, "merge: out overlaps outs[1]"},
    {"overlaps_lse", [](MergeCall& c) { c.lse().data = c.out().data; }, kInvalid, "merge: lse overlaps out"},
    {"lse_overlaps_outs", [](MergeCall& c) { c.lse().data = c.outs()[0].data; }, kInvalid,
     "merge: lse overlaps outs[0], expected memory of its own"},
    {"num_threads", [](MergeCall& c) { c.options().num_threads = -1; }, kInvalid, "merge: num_threads is -1"},
    {"num_sms", [](MergeCall& c) { c.options().num_sms = 4; }, TESSELLA_UNSUPPORTED,
     "merge: option num_sms is for GPUs, and outs are on the CPU"},
    {"max_seqlen", [](MergeCall& c) { c.options().max_seqlen = 4; }, kInvalid,
     "merge: max_seqlen is 4, expected 0 or at least 5, the rows of outs"},
    {"kernel_of_another_operation", [](MergeCall& c) { c.options().kernel = "reference.attention"; },
     TESSELLA_UNSUPPORTED,
     "merge: kernel is reference.attention, which cannot run this call: computes forward, not merge"},
    {"unknown_kernel", [](MergeCall& c) { c.options().kernel = "nobody"; }, kInvalid, "merge: kernel is \"nobody\""},
};

TEST(MergeErrors, SayWhatWasGivenAndExpected) {
  for (const ExpectedError& expected : kErrors) {
    MergeCall call(base());
    expected.spoil(call);
    EXPECT_EQ(tessella_merge(&call.args(), &call.options(), nullptr), expected.status) << expected.name;
    EXPECT_NE(std::string_view(tessella_last_error()).find(expected.message), std::string_view::npos)
        << expected.name << ": " << tessella_last_error();
    MergeCall untouched(base());
    EXPECT_EQ(call.results(), untouched.results()) << expected.name << " wrote";
  }
}

TEST(MergePlans, F64RunsOnVectors) {
  MergeCase c = base();
  c.dtype = c.out_dtype = TESSELLA_F64;
  MergeCall call(c);
  const tessella_call tagged{sizeof tagged, TESSELLA_MERGE, &call.args(), nullptr};
  tessella_plan* plan = nullptr;
  ASSERT_EQ(tessella_plan_make(&tagged, &plan), TESSELLA_OK) << tessella_last_error();
  EXPECT_EQ(std::string_view(tessella_plan_kernel(plan)).substr(0, 10), "cpu.merge_");
  tessella_plan_free(plan);
}

TEST(MergePlans, ExplainAndRun) {
  MergeCase c = base();
  MergeCall call(c);
  call.options().max_seqlen = 100;
  const tessella_call tagged{sizeof tagged, TESSELLA_MERGE, &call.args(), &call.options()};
  tessella_plan* plan = nullptr;
  ASSERT_EQ(tessella_plan_make(&tagged, &plan), TESSELLA_OK) << tessella_last_error();
  const std::string message = tessella_plan_explain(plan);
  for (const char* part : {"operation=merge device=cpu", "num_states=3", "batch=2", "seqlen=100", "heads=4",
                           "head_dim=8", "outs.dtype=f32", "features: lse", "kernel: cpu.merge_"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " in\n" << message;
  }
  EXPECT_EQ(tessella_plan_run(plan, &tagged, nullptr, nullptr), TESSELLA_OK) << tessella_last_error();
  EXPECT_EQ(call.check(), "");

  const auto expect_error = [&](const tessella_merge_args& args, const char* sentence) {
    tessella_merge_options options = TESSELLA_MERGE_OPTIONS_INIT;
    const tessella_call other{sizeof other, TESSELLA_MERGE, &args, &options};
    EXPECT_EQ(tessella_plan_run(plan, &other, nullptr, nullptr), TESSELLA_INVALID_ARGUMENT);
    EXPECT_STREQ(tessella_last_error(), sentence);
  };
  tessella_merge_args fewer = call.args();
  fewer.num_states = 2;
  expect_error(fewer, "plan_run: num_states is 2, expected 3, what the plan was made for");
  tessella_merge_args without_lse = call.args();
  without_lse.lse = nullptr;
  expect_error(without_lse, "plan_run: lse is absent, and the plan was made with it");
  c.seqlen = 101;
  MergeCall longer(c);
  expect_error(longer.args(), "plan_run: seqlen is 101, expected at most 100, the plan's bound");

  tessella_forward_args forward = TESSELLA_FORWARD_ARGS_INIT;
  const tessella_call of_another{sizeof of_another, TESSELLA_FORWARD, &forward, nullptr};
  EXPECT_EQ(tessella_plan_run(plan, &of_another, nullptr, nullptr), TESSELLA_INVALID_ARGUMENT);
  tessella_plan_free(plan);
}

TEST(MergePlans, KernelsSayWhy) {
  MergeCall call(base());
  const tessella_call tagged{sizeof tagged, TESSELLA_MERGE, &call.args(), nullptr};
  for (int32_t idx = 0; idx < tessella_kernel_count(); ++idx) {
    tessella_kernel_info info = TESSELLA_KERNEL_INFO_INIT;
    ASSERT_EQ(tessella_kernel_describe(idx, &info), TESSELLA_OK);
    const char* reason = nullptr;
    ASSERT_EQ(tessella_kernel_refusal(idx, &tagged, &reason), TESSELLA_OK) << tessella_last_error();
    if (std::string_view(info.operation) != "merge") {
      EXPECT_EQ(reason, std::string("computes ") + info.operation + ", not merge") << info.name;
    } else if (std::string_view(info.device) == "cuda") {
      EXPECT_STREQ(reason, "runs on cuda tensors, and outs are on the CPU") << info.name;
    } else {
      EXPECT_STREQ(reason, info.unavailable) << info.name;
    }
    tessella_kernel_cost cost = TESSELLA_KERNEL_COST_INIT;
    EXPECT_EQ(tessella_kernel_cost_of(idx, &tagged, &cost), TESSELLA_UNSUPPORTED) << info.name;
  }
}

TEST(MergeCpp, TakesStatesOptionsAndPlans) {
  MergeCall call(base());
  std::vector<ts::State> states;
  for (size_t i = 0; i < 3; ++i) states.push_back({ts::TensorView(call.outs()[i]), ts::TensorView(call.lses()[i])});
  const ts::TensorView out(call.out()), lse(call.lse());
  ts::merge({states[0], states[1], states[2]}, out, lse, {.num_threads = 1, .kernel = "cpu.merge_baseline"});
  EXPECT_EQ(call.check(), "");
  EXPECT_NE(ts::check_merge(states, out, lse, 0).passed, 0);

  const ts::MergePlan plan = ts::plan_merge(states, out, lse, {.max_seqlen = 64});
  MergeCall planned(base());
  plan.run(states, ts::TensorView(planned.out()), ts::TensorView(planned.lse()));
  EXPECT_EQ(planned.check(), "");
  EXPECT_EQ(plan.workspace_size().state_bytes, 0u);

  std::atomic<int32_t> cancel = 1;
  try {
    ts::merge(states, out, lse, {.cancel = &cancel});
    ADD_FAILURE() << "it ran";
  } catch (const ts::Error& error) {
    EXPECT_EQ(error.code(), ts::ErrorCode::cancelled);
    EXPECT_STREQ(error.what(), "merge: the call was cancelled before it began; nothing was touched");
  }
}

// An older program's shorter options mean defaults; a newer one's unknown field is an error.
TEST(MergeStructs, MayGrow) {
  MergeCall call(base());
  call.options().struct_size = offsetof(tessella_merge_options, max_seqlen);
  EXPECT_EQ(tessella_merge(&call.args(), &call.options(), nullptr), TESSELLA_OK) << tessella_last_error();
  struct {
    tessella_merge_args args;
    int64_t unknown;
  } newer{call.args(), 1};
  newer.args.struct_size = sizeof newer;
  EXPECT_EQ(tessella_merge(&newer.args, nullptr, nullptr), TESSELLA_UNSUPPORTED);
  EXPECT_NE(std::string_view(tessella_last_error()).find("merge: args sets a field at byte"), std::string_view::npos);
}

}  // namespace
