// backward through the API: every refusal with its code and sentence, plans, explain, questions, C++.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cases/kernels.hpp"
#include "cases/small_call.hpp"
#include "tessella/backward.hpp"

namespace ts = tessella;

namespace tessella::tests {
namespace {

constexpr float kUntouched = -7;

// A small call of forward that ran, with everything that has gradients, and the gradients.
struct SmallBackward : SmallCall {
  std::vector<float> bias = std::vector<float>(kHeadsQ * kSeqlenKv, 0.125f);
  std::vector<float> sink = std::vector<float>(kHeadsQ, 0.5f);
  std::vector<float> slopes = std::vector<float>(kHeadsQ, 0.25f);
  std::vector<float> d_out = std::vector<float>(out.size(), 1.5f);
  std::vector<float> d_lse = std::vector<float>(lse.size(), 0.5f);
  std::vector<float> dq = std::vector<float>(q.size(), kUntouched);
  std::vector<float> dk = std::vector<float>(k.size(), kUntouched);
  std::vector<float> dv = std::vector<float>(v.size(), kUntouched);
  std::vector<float> d_bias = std::vector<float>(bias.size(), kUntouched);
  std::vector<float> d_sink = std::vector<float>(sink.size(), kUntouched);
  std::vector<float> d_slopes = std::vector<float>(slopes.size(), kUntouched);
  ts::Gradients gradients{.d_out = ts::view(d_out.data(), ts::f32, {kBatch, kSeqlenQ, kHeadsQ, kDim}),
                          .d_lse = ts::view(d_lse.data(), ts::f32, {kBatch, kHeadsQ, kSeqlenQ}),
                          .dq = ts::view(dq.data(), ts::f32, {kBatch, kSeqlenQ, kHeadsQ, kDim}),
                          .dk = ts::view(dk.data(), ts::f32, {kBatch, kSeqlenKv, kHeadsKv, kDim}),
                          .dv = ts::view(dv.data(), ts::f32, {kBatch, kSeqlenKv, kHeadsKv, kDim}),
                          .d_bias = ts::view(d_bias.data(), ts::f32, {kHeadsQ, 1, kSeqlenKv}),
                          .d_sink = ts::view(d_sink.data(), ts::f32, {kHeadsQ}),
                          .d_alibi_slopes = ts::view(d_slopes.data(), ts::f32, {kHeadsQ})};

  SmallBackward() {
    for (size_t n = 0; n < q.size(); ++n) q[n] = std::sin(static_cast<float>(n));
    for (size_t n = 0; n < k.size(); ++n) k[n] = std::cos(static_cast<float>(3 * n));
    for (size_t n = 0; n < v.size(); ++n) v[n] = std::sin(static_cast<float>(5 * n));
    args.bias = ts::view(bias.data(), ts::f32, {kHeadsQ, 1, kSeqlenKv});
    args.sink = ts::view(sink.data(), ts::f32, {kHeadsQ});
    args.alibi_slopes = ts::view(slopes.data(), ts::f32, {kHeadsQ});
    ts::forward(args, options);
  }
  SmallBackward(const SmallBackward&) = delete;

  std::vector<std::vector<float>> results() const { return {dq, dk, dv, d_bias, d_sink, d_slopes}; }
  bool is_untouched() const {
    for (const std::vector<float>& result : results()) {
      for (const float value : result) {
        if (value != kUntouched) return false;
      }
    }
    return true;
  }
};

ts::TensorView with(const ts::TensorView& view, const std::function<void(tessella_tensor&)>& change) {
  return ts::TensorView(changed(view, change));
}
ts::TensorView of_size(const ts::TensorView& view, int axis, int64_t size) {
  return with(view, [&](tessella_tensor& t) { t.shape[axis] = size; });
}
ts::TensorView of_dtype(const ts::TensorView& view, tessella_dtype dtype) {
  return with(view, [&](tessella_tensor& t) { t.dtype = dtype; });
}
ts::TensorView read_only(const ts::TensorView& view) {
  return with(view, [](tessella_tensor& t) { t.flags = TESSELLA_READ_ONLY; });
}

struct Refusal {
  const char* name;
  std::function<void(SmallBackward&)> spoil;
  ts::ErrorCode code;
  const char* text;  // part of the message
};

constexpr auto kInvalid = ts::ErrorCode::invalid_argument;
constexpr auto kUnsupported = ts::ErrorCode::unsupported;

const int32_t kPages[] = {0, 1};
const float kScales[] = {1};

const Refusal kRefusals[] = {
    // The call of forward.
    {"q_absent", [](SmallBackward& c) { c.args.q = {}; }, kInvalid, "backward: q is NULL, expected a tensor"},
    {"out_absent", [](SmallBackward& c) { c.args.out = {}; }, kInvalid, "backward: out is NULL, expected a tensor"},
    {"lse_absent", [](SmallBackward& c) { c.args.lse = {}; }, kInvalid,
     "backward: forward.lse is NULL, expected what the call wrote"},
    {"lse_shape", [](SmallBackward& c) { c.args.lse = of_size(c.args.lse, 2, 2); }, kInvalid,
     "backward: lse has shape (2, 4, 2), expected (2, 4, 3) = (batch, heads_q, seqlen_q)"},
    {"scale", [](SmallBackward& c) { c.options.scale = INFINITY; }, kInvalid,
     "backward: scale is inf, expected a finite number"},
    {"page_table", [](SmallBackward& c) { c.args.page_table = ts::view(kPages, ts::i32, {kBatch, 1}); }, kUnsupported,
     "backward: page_table is given, and has no gradients"},
    {"scales", [](SmallBackward& c) { c.args.q_scale = ts::view(kScales, ts::f32, {1, 1, 1}); }, kUnsupported,
     "backward: scales is given, and has no gradients"},
    // What comes in.
    {"d_out_absent", [](SmallBackward& c) { c.gradients.d_out = {}; }, kInvalid,
     "backward: d_out is NULL, expected a tensor"},
    {"d_out_batch", [](SmallBackward& c) { c.gradients.d_out = of_size(c.gradients.d_out, 0, 1); }, kInvalid,
     "backward: d_out.shape[0] is 1, expected 2 = that of out (layout batch, seqlen, heads, head_dim)"},
    {"d_out_rows", [](SmallBackward& c) { c.gradients.d_out = of_size(c.gradients.d_out, 1, 2); }, kInvalid,
     "backward: d_out.shape[1] is 2, expected 3 = that of out"},
    {"d_out_heads", [](SmallBackward& c) { c.gradients.d_out = of_size(c.gradients.d_out, 2, 2); }, kInvalid,
     "backward: d_out.shape[2] is 2, expected 4 = that of out"},
    {"d_out_head_dim", [](SmallBackward& c) { c.gradients.d_out = of_size(c.gradients.d_out, 3, 7); }, kInvalid,
     "backward: d_out.shape[3] is 7, expected 8 = that of out"},
    {"d_out_strided",
     [](SmallBackward& c) { c.gradients.d_out = with(c.gradients.d_out, [](tessella_tensor& t) { t.strides[3] = 2; }); },
     kInvalid, "backward: d_out.strides[3] is 2, expected 1: head_dim must be contiguous"},
    {"d_out_dtype", [](SmallBackward& c) { c.gradients.d_out = of_dtype(c.gradients.d_out, TESSELLA_BF16); }, kInvalid,
     "backward: d_out.dtype is bf16, expected f32"},
    {"d_lse_shape", [](SmallBackward& c) { c.gradients.d_lse = of_size(c.gradients.d_lse, 1, 2); }, kInvalid,
     "backward: d_lse has shape (2, 2, 3), expected (2, 4, 3) = (batch, heads_q, seqlen_q)"},
    {"d_lse_dtype", [](SmallBackward& c) { c.gradients.d_lse = of_dtype(c.gradients.d_lse, TESSELLA_F16); }, kInvalid,
     "backward: d_lse.dtype is f16, expected f32"},
    // What is written.
    {"dq_rows", [](SmallBackward& c) { c.gradients.dq = of_size(c.gradients.dq, 1, 2); }, kInvalid,
     "backward: dq.shape[1] is 2, expected 3 = that of q"},
    {"dk_heads", [](SmallBackward& c) { c.gradients.dk = of_size(c.gradients.dk, 2, 1); }, kInvalid,
     "backward: dk.shape[2] is 1, expected 2 = that of k"},
    {"dv_head_dim", [](SmallBackward& c) { c.gradients.dv = of_size(c.gradients.dv, 3, 4); }, kInvalid,
     "backward: dv.shape[3] is 4, expected 8 = that of v"},
    {"dq_dtype", [](SmallBackward& c) { c.gradients.dq = of_dtype(c.gradients.dq, TESSELLA_F16); }, kInvalid,
     "backward: dq.dtype is f16, expected f32"},
    {"dk_dtype", [](SmallBackward& c) { c.gradients.dk = of_dtype(c.gradients.dk, TESSELLA_I32); }, kInvalid,
     "backward: dk.dtype is i32, expected f32"},
    {"dq_read_only", [](SmallBackward& c) { c.gradients.dq = read_only(c.gradients.dq); }, kInvalid,
     "backward: dq is read-only, expected memory that may be written"},
    {"dv_read_only", [](SmallBackward& c) { c.gradients.dv = read_only(c.gradients.dv); }, kInvalid,
     "backward: dv is read-only, expected memory that may be written"},
    {"dk_without_memory",
     [](SmallBackward& c) { c.gradients.dk = with(c.gradients.dk, [](tessella_tensor& t) { t.data = nullptr; }); },
     kInvalid, "backward: dk.data is NULL, expected memory"},
    {"d_bias_alone", [](SmallBackward& c) { c.args.bias = {}; }, kInvalid,
     "backward: d_bias is given, expected it beside forward.bias"},
    {"d_sink_alone", [](SmallBackward& c) { c.args.sink = {}; }, kInvalid,
     "backward: d_sink is given, expected it beside forward.sink"},
    {"d_alibi_slopes_alone", [](SmallBackward& c) { c.args.alibi_slopes = {}; }, kInvalid,
     "backward: d_alibi_slopes is given, expected it beside forward.alibi_slopes"},
    {"d_bias_shape", [](SmallBackward& c) { c.gradients.d_bias = of_size(c.gradients.d_bias, 0, 1); }, kInvalid,
     "backward: d_bias has another shape than bias, expected the same"},
    {"d_sink_shape", [](SmallBackward& c) { c.gradients.d_sink = of_size(c.gradients.d_sink, 0, 2); }, kInvalid,
     "backward: d_sink has another shape than sink, expected the same"},
    {"d_bias_dtype", [](SmallBackward& c) { c.gradients.d_bias = of_dtype(c.gradients.d_bias, TESSELLA_BF16); },
     kInvalid, "backward: d_bias.dtype is bf16, expected f32"},
    {"d_sink_dtype", [](SmallBackward& c) { c.gradients.d_sink = of_dtype(c.gradients.d_sink, TESSELLA_F16); },
     kInvalid, "backward: d_sink.dtype is f16, expected f32"},
    {"d_alibi_slopes_dtype",
     [](SmallBackward& c) { c.gradients.d_alibi_slopes = of_dtype(c.gradients.d_alibi_slopes, TESSELLA_I32); },
     kInvalid, "backward: d_alibi_slopes.dtype is i32, expected f32"},
    {"d_bias_folded",
     [](SmallBackward& c) {
       c.gradients.d_bias = with(c.gradients.d_bias, [](tessella_tensor& t) { t.strides[0] = 0; });
     },
     kInvalid, "backward: d_bias.strides[0] is 0, expected an axis of its own"},
    {"d_sink_read_only", [](SmallBackward& c) { c.gradients.d_sink = read_only(c.gradients.d_sink); }, kInvalid,
     "backward: d_sink is read-only, expected memory that may be written"},
    {"nothing_asked_for",
     [](SmallBackward& c) { c.gradients = {.d_out = c.gradients.d_out, .d_lse = c.gradients.d_lse}; }, kInvalid,
     "backward: no gradient is given, expected one of dq, dk, dv or more"},
    {"accumulates_what_is_absent",
     [](SmallBackward& c) {
       c.gradients.dk = {};
       c.gradients.accumulate = TESSELLA_DK;
     },
     kInvalid, "backward: accumulate is 2, expected bits of gradients that are given"},
    {"accumulates_unknown_bits", [](SmallBackward& c) { c.gradients.accumulate = 64; }, kInvalid,
     "backward: accumulate is 64, expected bits of gradients that are given"},
    // Options.
    {"num_threads", [](SmallBackward& c) { c.options.num_threads = -1; }, kInvalid, "backward: num_threads is -1"},
    {"kernel_of_forward", [](SmallBackward& c) { c.options.kernel = "reference.attention"; }, kUnsupported,
     "backward: no kernel computes this call; reference.attention: computes forward, not backward"},
    {"unknown_kernel", [](SmallBackward& c) { c.options.kernel = "nobody"; }, kInvalid,
     "backward: kernel is \"nobody\""},
};

TEST(BackwardRefusals, SayWhatWasGivenAndExpectedAndTouchNothing) {
  for (const Refusal& refusal : kRefusals) {
    SmallBackward call;
    refusal.spoil(call);
    try {
      ts::backward(call.args, call.gradients, call.options);
      ADD_FAILURE() << refusal.name << " ran";
    } catch (const ts::Error& error) {
      EXPECT_EQ(error.code(), refusal.code) << refusal.name << ": " << error.what();
      EXPECT_NE(std::string_view(error.what()).find(refusal.text), std::string_view::npos)
          << refusal.name << ": " << error.what();
    }
    EXPECT_TRUE(call.is_untouched()) << refusal.name << " wrote";
  }
}

TEST(BackwardRefusals, BitsOfAnotherDtypeNameBoth) {
  SmallBackward call;
  call.args.q = of_dtype(call.args.q, TESSELLA_BF16);
  call.args.k = of_dtype(call.args.k, TESSELLA_BF16);
  call.args.v = of_dtype(call.args.v, TESSELLA_BF16);
  call.gradients.dq = of_dtype(call.gradients.dq, TESSELLA_F16);
  EXPECT_THROW(
      {
        try {
          ts::backward(call.args, call.gradients, call.options);
        } catch (const ts::Error& error) {
          EXPECT_STREQ(error.what(), "backward: dq.dtype is f16, expected bf16 or f32");
          throw;
        }
      },
      ts::Error);
}

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
  const std::string text = plan.explain();
  for (const char* part : {"operation=backward device=cpu", "batch=2", "seqlen_q=100", "heads_kv=2", "head_dim_qk=8",
                           "d_lse", "d_bias", "d_sink", "d_alibi_slopes", "kernel: cpu.backward_"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
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
      EXPECT_STREQ(reason, info.unavailable) << info.name;
    }
    // What backward alone has is no feature of others.
    EXPECT_EQ(std::string_view(info.features).find("d_lse") != std::string_view::npos, is_backward) << info.name;
    EXPECT_EQ(std::string_view(info.features).find("d_bias") != std::string_view::npos, is_backward) << info.name;
  }
}

class BackwardCancel : public EachKernel {};

// Some seconds of work of one thread whose tensors are small: rows of zeros that all heads have in common.
struct LongCall {
  static constexpr int64_t kLength = 4096, kHeads = 16, kWidth = 64;
  std::vector<float> input = std::vector<float>(kLength * kWidth), lse = std::vector<float>(kHeads * kLength);
  std::vector<float> dv = std::vector<float>(kHeads * kLength * kWidth, kUntouched);
  std::vector<float> dq = dv;
  ts::TensorView rows = ts::view(input.data(), ts::f32, {1, kLength, kHeads, kWidth}, {0, kWidth, 0, 1});
  std::vector<float> out = dv;
  ts::ForwardArgs args{.q = rows,
                       .k = rows,
                       .v = rows,
                       .out = ts::view(out.data(), ts::f32, {1, kLength, kHeads, kWidth}),
                       .lse = ts::view(lse.data(), ts::f32, {1, kHeads, kLength})};
  ts::Gradients gradients{.d_out = rows,
                          .dq = ts::view(dq.data(), ts::f32, {1, kLength, kHeads, kWidth}),
                          .dv = ts::view(dv.data(), ts::f32, {1, kLength, kHeads, kWidth})};
};

TEST_P(BackwardCancel, BeforeItNothingIsTouchedAndDuringItItEnds) {
  if (GetParam().is_on_gpu()) GTEST_SKIP() << "a GPU's kernels do not read the flag";
  if (!GetParam().computes("f32")) GTEST_SKIP() << "of another dtype";
  LongCall call;
  std::atomic<int32_t> flag{1};
  const auto said = [&](int threads) -> std::string {
    try {
      ts::backward(call.args, call.gradients,
                   {.num_threads = threads, .kernel = GetParam().name, .cancel = &flag});
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

// An older program's shorter args mean defaults; a newer one's unknown field is refused.
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
