// append and copy_pages through the API: results, plans, explain, questions, C++. Their errors are in
// append_errors_test.cpp.
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cases/append_call.hpp"
#include "cases/copy_pages_call.hpp"
#include "cases/small_append.hpp"
#include "tessella/append.hpp"
#include "tessella/copy_pages.hpp"

namespace ts = tessella;

namespace {

using namespace tessella::tests;

constexpr auto kInvalid = TESSELLA_INVALID_ARGUMENT;

// A table without entries may be NULL; the pool is one of pages all the same.
TEST(Append, TakesAnEmptyBatchOfPages) {
  AppendCase c = contiguous();
  c.batch = 0;
  c.page_size = 3;
  AppendCall call(c);
  edit(call.table("page_table")).data = nullptr;
  EXPECT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();
}

TEST(AppendPlans, ExplainAndRun) {
  AppendCase c = contiguous();
  AppendCall call(c);
  call.remember();
  call.options().max_seqlen_new = 5;
  const tessella_call tagged = call.tagged();
  tessella_plan* plan = nullptr;
  ASSERT_EQ(tessella_plan_make(&tagged, &plan), TESSELLA_OK) << tessella_last_error();
  const std::string message = tessella_plan_explain(plan);
  for (const char* part : {"operation=append device=cpu", "batch=2", "seqlen_new=5", "rows.dtype=f32", "k_new.heads=2",
                           "k_new.head_dim=8", "v_new.head_dim=6", "q.heads=4", "rotary_cos.dtype=f32", "rotary_dim=6",
                           "features: none", "kernel: cpu.append"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " in\n" << message;
  }
  EXPECT_EQ(tessella_plan_run(plan, &tagged, nullptr, nullptr), TESSELLA_OK) << tessella_last_error();
  EXPECT_EQ(call.check(), "");

  const auto expect_error = [&](const AppendCase& other, const char* sentence) {
    AppendCall given(other);
    const tessella_call of = given.tagged();
    EXPECT_EQ(tessella_plan_run(plan, &of, nullptr, nullptr), kInvalid);
    EXPECT_STREQ(tessella_last_error(), sentence);
  };
  c.seqlen_new = 6;
  expect_error(c, "plan_run: seqlen_new is 6, expected at most 5, the plan's bound");
  c = contiguous();
  c.batch = 3;
  expect_error(c, "plan_run: batch is 3, expected at most 2, the plan's bound");
  c = contiguous();
  c.heads_q = 2;
  expect_error(c, "plan_run: q.heads is 2, expected 4, what the plan was made for");
  // Tables are no matter of the plan's.
  c = contiguous();
  c.batch = 1;
  c.page_size = 2;
  c.ragged = true;
  AppendCall paged(c);
  paged.remember();
  const tessella_call of_pages = paged.tagged();
  EXPECT_EQ(tessella_plan_run(plan, &of_pages, nullptr, nullptr), TESSELLA_OK) << tessella_last_error();
  EXPECT_EQ(paged.check(), "");
  tessella_plan_free(plan);
}

TEST(AppendPlans, KernelsSayWhy) {
  AppendCall call(contiguous());
  const tessella_call tagged = call.tagged();
  for (int32_t idx = 0; idx < tessella_kernel_count(); ++idx) {
    tessella_kernel_info info = TESSELLA_KERNEL_INFO_INIT;
    ASSERT_EQ(tessella_kernel_describe(idx, &info), TESSELLA_OK);
    const char* reason = nullptr;
    ASSERT_EQ(tessella_kernel_refusal(idx, &tagged, &reason), TESSELLA_OK) << tessella_last_error();
    if (std::string_view(info.operation) != "append") {
      EXPECT_EQ(reason, std::string("computes ") + info.operation + ", not append") << info.name;
    } else if (std::string_view(info.device) == "cuda") {
      EXPECT_STREQ(reason, "runs on cuda tensors, and caches are on the CPU") << info.name;
    } else {
      EXPECT_STREQ(reason, info.unavailable) << info.name;
    }
  }
}

// Scales and the dtype of caches are the plan's matter, which pools hold them is not.
TEST(AppendPlans, OfQuantizedCaches) {
  AppendCall call(kComputed);
  call.remember();
  const tessella_call tagged = call.tagged();
  tessella_plan* plan = nullptr;
  ASSERT_EQ(tessella_plan_make(&tagged, &plan), TESSELLA_OK) << tessella_last_error();
  const std::string message = tessella_plan_explain(plan);
  for (const char* part : {"rows.dtype=f32", "cache.dtype=f8e4m3fn", "scale_block=1"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " in\n" << message;
  }
  EXPECT_EQ(tessella_plan_run(plan, &tagged, nullptr, nullptr), TESSELLA_OK) << tessella_last_error();
  EXPECT_EQ(call.check(), "");
  AppendCall given(kGiven);
  const tessella_call of_given = given.tagged();
  EXPECT_EQ(tessella_plan_run(plan, &of_given, nullptr, nullptr), kInvalid);
  EXPECT_STREQ(tessella_last_error(), "plan_run: cache.dtype is i8, expected f8e4m3fn, what the plan was made for");
  tessella_plan_free(plan);
}

// An older program's shorter options mean defaults; a newer one's unknown field is an error.
TEST(AppendStructs, MayGrow) {
  AppendCall call(contiguous());
  call.options().struct_size = offsetof(tessella_append_options, max_seqlen_new);
  EXPECT_EQ(tessella_append(&call.args(), &call.options(), nullptr), TESSELLA_OK) << tessella_last_error();
  // Before caches were quantised: what lies behind is neither scales nor their block.
  AppendCall older(contiguous());
  older.remember();
  older.args().struct_size = offsetof(tessella_append_args, k_scale);
  older.args().k_scale = older.args().q;
  older.options().struct_size = offsetof(tessella_append_options, scale_block);
  older.options().scale_block = 77;
  EXPECT_EQ(tessella_append(&older.args(), &older.options(), nullptr), TESSELLA_OK) << tessella_last_error();
  older.args().k_scale = nullptr;
  older.options().scale_block = 0;
  EXPECT_EQ(older.check(), "");
  struct {
    tessella_append_args args;
    const void* unknown;
  } newer{call.args(), &call};
  newer.args.struct_size = sizeof newer;
  EXPECT_EQ(tessella_append(&newer.args, nullptr, nullptr), TESSELLA_UNSUPPORTED);
  EXPECT_NE(std::string_view(tessella_last_error()).find("append: args sets a field at byte"), std::string_view::npos);
}

TEST(AppendCheck, FindsWhatWasWrittenOver) {
  AppendCase c = contiguous();
  c.in_place = true;
  AppendCall call(c);
  ASSERT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();
  const tessella_call tagged = call.tagged();
  tessella_check_report report = TESSELLA_CHECK_REPORT_INIT;
  EXPECT_EQ(tessella_check(&tagged, 0, 1, &report), kInvalid);
  EXPECT_STREQ(tessella_last_error(),
               "check: q_out is q, expected memory of its own: the append has written over what it read");
}

TEST(AppendCheck, NamesTheWorstTensor) {
  AppendCall call(contiguous());
  ASSERT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();
  const tessella_call tagged = call.tagged();
  tessella_check_report report = TESSELLA_CHECK_REPORT_INIT;
  ASSERT_EQ(tessella_check(&tagged, 0, 1, &report), TESSELLA_OK) << tessella_last_error();
  EXPECT_EQ(report.passed, 1);
  EXPECT_EQ(report.rows, 2 * 3 * (2 + 2 + 4));
  EXPECT_STREQ(report.worst_tensor, "k");
  const tessella_tensor& v = *call.args().v;
  const int32_t row = value(call.args().seqlens_kv, 1) - 1;
  static_cast<float*>(v.data)[v.strides[0] + row * v.strides[1] + v.strides[2] + 4] += 1e-3F;
  ASSERT_EQ(tessella_check(&tagged, 0, 1, &report), TESSELLA_OK) << tessella_last_error();
  EXPECT_EQ(report.passed, 0);
  EXPECT_STREQ(report.worst_tensor, "v");
  const int64_t index[] = {1, 2, 1, 4};
  for (int i = 0; i < 4; ++i) EXPECT_EQ(report.worst_index[i], index[i]) << i;
}

TEST(AppendCpp, TakesArgsOptionsAndPlans) {
  constexpr int64_t kPages = 6, kPageSize = 2, kHeads = 2, kDim = 4;
  std::vector<float> k_new(kHeads * kDim, 1), v_new(kHeads * kDim, 2), k(kPages * kPageSize * kHeads * kDim), v(k);
  std::vector<int32_t> seqlens = {4}, table = {5, 3};
  std::vector<float> cos(2 * 4, 0), sin(2 * 4, 1);  // a quarter turn: (x, y) -> (-y, x)
  const ts::AppendArgs args = {.k_new = ts::view(k_new.data(), ts::f32, {1, 1, kHeads, kDim}),
                               .v_new = ts::view(v_new.data(), ts::f32, {1, 1, kHeads, kDim}),
                               .k = ts::view(k.data(), ts::f32, {kPages, kPageSize, kHeads, kDim}),
                               .v = ts::view(v.data(), ts::f32, {kPages, kPageSize, kHeads, kDim}),
                               .seqlens_kv = ts::view(seqlens.data(), ts::i32, {1}),
                               .page_table = ts::view(table.data(), ts::i32, {1, 2}),
                               .rotary_cos = ts::view(cos.data(), ts::f32, {4, 2}),
                               .rotary_sin = ts::view(sin.data(), ts::f32, {4, 2})};
  ts::append(args, {.rotary_interleaved = true, .num_threads = 1});
  const size_t row = (3 * kPageSize + 1) * kHeads * kDim;  // row 3 is row 1 of page 3
  for (size_t i = 0; i < k.size(); ++i) {
    const bool is_new = i >= row && i < row + kHeads * kDim;
    ASSERT_EQ(k[i], is_new ? (i % 2 == 0 ? -1 : 1) : 0) << i;
    ASSERT_EQ(v[i], is_new ? 2 : 0) << i;
  }
  EXPECT_NE(ts::check_append(args, {.rotary_interleaved = true}, 0).passed, 0);
  EXPECT_EQ(ts::check_append(args, {}, 0).passed, 0);  // the other halves
  const ts::AppendPlan plan = ts::plan_append(args, {.max_seqlen_new = 8});
  EXPECT_EQ(plan.kernel(), "cpu.append");
  seqlens[0] = 1;
  plan.run(args);
  EXPECT_EQ(k[5 * kPageSize * kHeads * kDim], -1);

  std::atomic<int32_t> cancel = 1;
  try {
    ts::append(args, {.cancel = &cancel});
    ADD_FAILURE() << "it ran";
  } catch (const ts::Error& error) {
    EXPECT_EQ(error.code(), ts::ErrorCode::cancelled);
  }
}

TEST(AppendCpp, QuantizesARow) {
  constexpr int64_t kDim = 4;
  std::vector<float> k_new = {127, -0.5F, 63.5F, -126.9F}, k_scale(3, -1);
  std::vector<int8_t> k(3 * kDim, 99);
  std::vector<int32_t> seqlens = {2};
  const ts::AppendArgs args = {.k_new = ts::view(k_new.data(), ts::f32, {1, 1, 1, kDim}),
                               .k = ts::view(k.data(), ts::i8, {1, 3, 1, kDim}),
                               .seqlens_kv = ts::view(seqlens.data(), ts::i32, {1}),
                               .k_scale = ts::view(k_scale.data(), ts::f32, {1, 3, 1})};
  ts::append(args, {.scale_block = 1});
  EXPECT_EQ(k, (std::vector<int8_t>{99, 99, 99, 99, 127, 0, 64, -127, 99, 99, 99, 99}));
  EXPECT_EQ(k_scale, (std::vector<float>{-1, 1, -1}));
  EXPECT_NE(ts::check_append(args, {.scale_block = 1}, 0).passed, 0);
  k_scale[1] = 2;
  EXPECT_EQ(ts::check_append(args, {.scale_block = 1}, 0).passed, 0);
}

TEST(CopyPagesPlans, ExplainAndRun) {
  CopyPagesCall call({});
  call.remember();
  const tessella_call tagged = call.tagged();
  tessella_plan* plan = nullptr;
  ASSERT_EQ(tessella_plan_make(&tagged, &plan), TESSELLA_OK) << tessella_last_error();
  const std::string message = tessella_plan_explain(plan);
  for (const char* part : {"operation=copy_pages device=cpu num_pools=2 num_pages=12 num_pairs=3 pools.dtype=bf16",
                           "kernel: cpu.copy_pages"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " in\n" << message;
  }
  EXPECT_EQ(tessella_plan_run(plan, &tagged, nullptr, nullptr), TESSELLA_OK) << tessella_last_error();
  EXPECT_EQ(call.check(), "");
  CopyPagesCall more({.num_pairs = 4});
  const tessella_call of_more = more.tagged();
  EXPECT_EQ(tessella_plan_run(plan, &of_more, nullptr, nullptr), kInvalid);
  EXPECT_STREQ(tessella_last_error(), "plan_run: num_pairs is 4, expected at most 3, the plan's bound");
  tessella_plan_free(plan);
}

// k and v of one allocation, page by page.
TEST(CopyPagesCpp, CopiesAndChecks) {
  std::vector<float> memory(5 * 2 * 6);
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<float>(i);
  const ts::TensorView k = ts::view(memory.data(), ts::f32, {5, 3, 1, 2}, {12, 2, 2, 1});
  const ts::TensorView v = ts::view(memory.data() + 6, ts::f32, {5, 3, 1, 2}, {12, 2, 2, 1});
  const std::vector<int32_t> pairs = {4, 1, -1, 0};
  const ts::TensorView view = ts::view(pairs.data(), ts::i32, {2, 2});
  EXPECT_EQ(ts::check_copy_pages({k, v}, view, 0).passed, 0);
  ts::copy_pages({k, v}, view);
  for (size_t i = 0; i < memory.size(); ++i) {
    ASSERT_EQ(memory[i], static_cast<float>(i / 12 == 1 ? i + 36 : i));
  }
  EXPECT_NE(ts::check_copy_pages({k, v}, view, 0).passed, 0);
}

}  // namespace
