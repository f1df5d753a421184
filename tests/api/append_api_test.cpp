// append and copy_pages through the API: every error with its code and sentence, plans, explain, questions, C++.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cases/append_call.hpp"
#include "cases/copy_pages_call.hpp"
#include "cases/tensor_places.hpp"
#include "tessella/append.hpp"
#include "tessella/copy_pages.hpp"

namespace ts = tessella;

namespace {

using namespace tessella::tests;

constexpr auto kInvalid = TESSELLA_INVALID_ARGUMENT;

tessella_tensor& edit(const tessella_tensor* t) { return *const_cast<tessella_tensor*>(t); }
int32_t& value(const tessella_tensor* t, int64_t idx) { return static_cast<int32_t*>(t->data)[idx]; }

AppendCase contiguous() {
  return {.batch = 2,
          .seqlen_new = 3,
          .seqlen_kv = 9,
          .heads_kv = 2,
          .heads_q = 4,
          .head_dim_qk = 8,
          .head_dim_v = 6,
          .rotary_dim = 6};
}
AppendCase with(void (*change)(AppendCase&)) {
  AppendCase c = contiguous();
  change(c);
  return c;
}

struct ExpectedError {
  const char* name;
  AppendCase c;
  std::function<void(AppendCall&)> spoil;
  tessella_status status;
  const char* message;  // part of the message
};

const AppendCase kPlain = contiguous();
const AppendCase kPaged = with([](AppendCase& c) { c.page_size = 4; });
const AppendCase kPacked = with([](AppendCase& c) { c.packed = true; });
const AppendCase kRagged = with([](AppendCase& c) { c.ragged = true; });
const AppendCase kSlots = with([](AppendCase& c) { c.slots = true; });
const AppendCase kGiven = with([](AppendCase& c) {
  c.cache_dtype = TESSELLA_I8;
  c.scale = "s";
});
const AppendCase kComputed = with([](AppendCase& c) {
  c.cache_dtype = TESSELLA_F8E4M3FN;
  c.scale = "th";
});
const AppendCase kInt4 = with([](AppendCase& c) { c.cache_dtype = TESSELLA_I4; });
const AppendCase kF64 = with([](AppendCase& c) { c.dtype = TESSELLA_F64; });
const AppendCase kPadded = with([](AppendCase& c) { c.leftpad = true; });

const ExpectedError kErrors[] = {
    {"nothing_new", kPlain, [](AppendCall& c) { c.args().k_new = c.args().v_new = nullptr; }, kInvalid,
     "append: k_new and v_new are NULL, expected one of them or both"},
    {"cache_absent", kPlain, [](AppendCall& c) { c.args().k = nullptr; }, kInvalid,
     "append: k is NULL, expected it beside k_new"},
    {"rows_absent", kPlain, [](AppendCall& c) { c.args().v_new = nullptr; }, kInvalid,
     "append: v_new is NULL, expected it beside v"},
    {"sin_absent", kPlain, [](AppendCall& c) { c.args().rotary_sin = nullptr; }, kInvalid,
     "append: rotary_sin is NULL, expected it beside rotary_cos"},
    {"q_out_absent", kPlain, [](AppendCall& c) { c.args().q_out = nullptr; }, kInvalid,
     "append: q_out is NULL, expected it beside q"},
    {"q_without_angles", kPlain, [](AppendCall& c) { c.args().rotary_cos = c.args().rotary_sin = nullptr; }, kInvalid,
     "append: q is given, expected it beside rotary_cos and rotary_sin"},
    {"seqlens_absent", kPlain, [](AppendCall& c) { c.args().seqlens_kv = nullptr; }, kInvalid,
     "append: seqlens_kv is NULL, expected a tensor"},
    {"integers", kPlain, [](AppendCall& c) { edit(c.args().k_new).dtype = TESSELLA_I32; }, kInvalid,
     "append: k_new.dtype is i32, expected f64, f32, bf16 or f16"},
    {"dtypes_differ", kPlain, [](AppendCall& c) { edit(c.args().v_new).dtype = TESSELLA_BF16; }, kInvalid,
     "append: v_new.dtype is bf16, expected f32 = k_new.dtype"},
    {"cache_dtype", kPlain, [](AppendCall& c) { edit(c.args().k).dtype = TESSELLA_F16; }, kInvalid,
     "append: k.dtype is f16, expected f32 = k_new.dtype, or f8e4m3fn, i8 or i4"},
    {"cache_dtypes_differ", kGiven, [](AppendCall& c) { edit(c.args().v).dtype = TESSELLA_F8E4M3FN; }, kInvalid,
     "append: v.dtype is f8e4m3fn, expected i8 = k.dtype"},
    {"no_such_cache", kGiven, [](AppendCall& c) { edit(c.args().k).dtype = TESSELLA_F8E5M2; }, kInvalid,
     "append: k.dtype is f8e5m2, expected f32 = k_new.dtype, or f8e4m3fn, i8 or i4"},
    {"f64_is_not_quantized", kF64, [](AppendCall& c) { edit(c.args().k).dtype = TESSELLA_I8; }, kInvalid,
     "append: k.dtype is i8, expected f64 = k_new.dtype"},
    {"odd_int4", kInt4,
     [](AppendCall& c) {
       edit(c.args().v).shape[3] = 5;
       edit(c.args().v_new).shape[3] = 5;
     },
     kInvalid, "append: v.shape[-1] is 5, expected an even number for i4"},
    {"scale_of_floats", kPlain, [](AppendCall& c) { c.args().k_scale = c.args().rotary_cos; }, kInvalid,
     "append: k_scale is given and k.dtype is f32, expected a dtype of 8 or 4 bits"},
    {"scale_without_cache", kGiven, [](AppendCall& c) { c.args().v = c.args().v_new = nullptr; }, kInvalid,
     "append: v_scale is given, expected it beside v"},
    {"scale_block_of_floats", kPlain, [](AppendCall& c) { c.options().scale_block = 1; }, kInvalid,
     "append: scale_block is 1, expected 0 for a cache of f32, which has no scales"},
    {"scale_block", kGiven, [](AppendCall& c) { c.options().scale_block = -1; }, kInvalid,
     "append: scale_block is -1, expected at least 0 (all rows)"},
    {"scale_of_several_rows", kComputed, [](AppendCall& c) { c.options().scale_block = 16; }, TESSELLA_UNSUPPORTED,
     "append: scale_block is 16, expected 0 (the scales are given) or 1"},
    {"scale_absent", kComputed, [](AppendCall& c) { c.args().v_scale = nullptr; }, kInvalid,
     "append: v_scale is NULL, expected memory for the scales of the new rows: scale_block is 1"},
    {"scale_dtype", kGiven, [](AppendCall& c) { edit(c.args().k_scale).dtype = TESSELLA_F16; }, kInvalid,
     "append: k_scale.dtype is f16, expected f32"},
    {"scale_shape", kGiven, [](AppendCall& c) { edit(c.args().k_scale).shape[2] = 3; }, kInvalid,
     "append: k_scale has shape (2, 1, 3), expected one that broadcasts to (2, 1, 2) = (batch, blocks, heads)"},
    {"one_scale_for_all", kComputed, [](AppendCall& c) { edit(c.args().k_scale).shape[2] = 1; }, kInvalid,
     "append: k_scale has one entry for several rows or heads, expected one for each, (2, 9, 2)"},
    {"read_only_scale", kComputed, [](AppendCall& c) { edit(c.args().k_scale).flags = TESSELLA_READ_ONLY; }, kInvalid,
     "append: k_scale is read-only, expected memory that may be written"},
    {"scales_overlap", kComputed, [](AppendCall& c) { edit(c.args().v_scale).data = c.args().k_scale->data; }, kInvalid,
     "append: v_scale overlaps k_scale, expected memory of its own"},
    {"rows", kPlain, [](AppendCall& c) { edit(c.args().v_new).shape[1] = 2; }, kInvalid,
     "append: v_new.shape[1] is 2, expected 3 = the rows of k_new (layout batch, seqlen, heads, head_dim)"},
    {"heads", kPlain, [](AppendCall& c) { edit(c.args().k).shape[2] = 1; }, kInvalid,
     "append: k.shape[2] is 1, expected 2 = the heads of k_new"},
    {"head_dim", kPlain, [](AppendCall& c) { edit(c.args().v).shape[3] = 5; }, kInvalid,
     "append: v.shape[3] is 5, expected 6 = v_new.shape[-1]"},
    {"batch", kPlain, [](AppendCall& c) { edit(c.args().k).shape[0] = 1; }, kInvalid,
     "append: k.shape[0] is 1, expected 2 = the batch of k_new"},
    {"slots", kSlots, [](AppendCall& c) { edit(c.args().v).shape[0] = 3; }, kInvalid,
     "append: v.shape[0] is 3, expected 4 = k.shape[0]"},
    {"rows_of_caches", kPlain, [](AppendCall& c) { edit(c.args().v).shape[1] = 8; }, kInvalid,
     "append: v.shape[1] is 8, expected 9 = the rows of k"},
    {"pool_axes", kPaged, [](AppendCall& c) { edit(c.args().k).ndim = 3; }, kInvalid,
     "append: k has 3 axes, expected (num_pages, page_size, heads_kv, head_dim) beside page_table"},
    {"table_shape", kPaged, [](AppendCall& c) { edit(c.args().page_table).shape[0] = 1; }, kInvalid,
     "append: page_table has shape (1, 3), expected (2, 3) = (batch, pages)"},
    {"slots_beside_pages", kPaged, [](AppendCall& c) { c.args().cache_batch_idx = c.args().seqlens_kv; }, kInvalid,
     "append: cache_batch_idx is given, expected it absent beside page_table"},
    {"seqlens_shape", kPlain, [](AppendCall& c) { edit(c.args().seqlens_kv).shape[0] = 1; }, kInvalid,
     "append: seqlens_kv has shape (1), expected (2) = (batch)"},
    {"seqlens_dtype", kPlain, [](AppendCall& c) { edit(c.args().seqlens_kv).dtype = TESSELLA_I64; }, kInvalid,
     "append: seqlens_kv.dtype is i64, expected i32"},
    {"rotary_axes", kPlain, [](AppendCall& c) { edit(c.args().rotary_cos).ndim = 1; }, kInvalid,
     "append: rotary_cos has 1 axes, expected (positions, rotary_dim / 2)"},
    {"rotary_dtype", kPlain, [](AppendCall& c) { edit(c.args().rotary_cos).dtype = TESSELLA_BF16; }, kInvalid,
     "append: rotary_cos.dtype is bf16, expected f32"},
    {"rotary_shapes", kPlain, [](AppendCall& c) { edit(c.args().rotary_sin).shape[1] = 2; }, kInvalid,
     "append: rotary_sin has shape ("},
    {"rotary_dim", kPlain,
     [](AppendCall& c) {
       edit(c.args().rotary_cos).shape[1] = 5;
       edit(c.args().rotary_sin).shape[1] = 5;
     },
     kInvalid, "append: rotary_cos.shape[1] is 5, expected at most 4, half the head_dim of k_new"},
    {"positions", kPlain,
     [](AppendCall& c) {
       edit(c.args().rotary_cos).shape[0] = 2;
       edit(c.args().rotary_sin).shape[0] = 2;
     },
     kInvalid, "expected 0 to 1, the rows of rotary_cos"},
    {"past_the_cache", kPlain, [](AppendCall& c) { value(c.args().seqlens_kv, 1) = 10; }, kInvalid,
     "append: seqlens_kv[1] is 10, expected at most 9, the rows that a sequence may have"},
    {"before_the_cache", kPlain, [](AppendCall& c) { value(c.args().seqlens_kv, 0) = 2; }, kInvalid,
     "append: seqlens_kv[0] is 2, expected at least 3, the left padding and the 3 new rows, which count"},
    {"into_the_padding", kPadded,
     [](AppendCall& c) { value(c.args().leftpad_kv, 1) = value(c.args().seqlens_kv, 1) - 2; }, kInvalid,
     "the left padding and the 3 new rows"},
    {"padding", kPadded, [](AppendCall& c) { value(c.args().leftpad_kv, 1) = -1; }, kInvalid,
     "append: leftpad_kv[1] is -1, expected at least 0"},
    {"ragged", kRagged, [](AppendCall& c) { value(c.args().seqlens_new, 0) = 4; }, kInvalid,
     "append: seqlens_new[0] is 4, expected 0 to 3, the rows of the sequence"},
    {"packed_first", kPacked, [](AppendCall& c) { value(c.args().cu_seqlens_new, 0) = 1; }, kInvalid,
     "append: cu_seqlens_new[0] is 1, expected 0"},
    {"packed_falls", kPacked, [](AppendCall& c) { value(c.args().cu_seqlens_new, 1) = -1; }, kInvalid,
     "append: cu_seqlens_new[1] is -1, expected at least 0"},
    {"packed_beyond", kPacked, [](AppendCall& c) { value(c.args().cu_seqlens_new, 2) = 100; }, kInvalid,
     "append: cu_seqlens_new[2] is 100, expected at most"},
    {"page", kPaged,
     [](AppendCall& c) {
       for (int i = 0; i < 6; ++i) value(c.args().page_table, i) = 9;
     },
     kInvalid, "is 9, expected 0 to 8, the pages of k"},
    {"slot", kSlots, [](AppendCall& c) { value(c.args().cache_batch_idx, 1) = 4; }, kInvalid,
     "append: cache_batch_idx[1] is 4, expected 0 to 3, the batch of k"},
    {"one_slot_for_two", kSlots,
     [](AppendCall& c) {
       value(c.args().cache_batch_idx, 0) = value(c.args().cache_batch_idx, 1) = 2;
       value(c.args().seqlens_kv, 0) = 5;
       value(c.args().seqlens_kv, 1) = 6;
     },
     kInvalid, "append: sequences 0 and 1 have a new row in row 3 of batch 2 of k, expected rows of their own"},
    {"one_page_for_two", kPaged,
     [](AppendCall& c) {
       for (int i = 0; i < 6; ++i) value(c.args().page_table, i) = i % 3;
       value(c.args().seqlens_kv, 0) = value(c.args().seqlens_kv, 1) = 4;
     },
     kInvalid, "append: sequences 0 and 1 have a new row in row 1 of page 0 of k"},
    {"read_only", kPlain, [](AppendCall& c) { edit(c.args().v).flags = TESSELLA_READ_ONLY; }, kInvalid,
     "append: v is read-only, expected memory that may be written"},
    {"folded", kPlain, [](AppendCall& c) { edit(c.args().k).strides[1] = 0; }, kInvalid,
     "append: k has an axis of stride 0"},
    {"caches_overlap", kPlain, [](AppendCall& c) { edit(c.args().v).data = c.args().k->data; }, kInvalid,
     "append: v overlaps k, expected memory of its own"},
    {"reads_what_it_writes", kPlain, [](AppendCall& c) { edit(c.args().k).data = c.args().v_new->data; }, kInvalid,
     " overlaps "},
    {"q_out_beside_q", kPlain,
     [](AppendCall& c) { edit(c.args().q_out).data = static_cast<float*>(c.args().q->data) + 1; }, kInvalid,
     "append: q_out overlaps q, expected memory of its own, or the same view"},
    {"interleaved", kPlain, [](AppendCall& c) { c.options().rotary_interleaved = 2; }, kInvalid,
     "append: rotary_interleaved is 2, expected 0 or 1"},
    {"num_threads", kPlain, [](AppendCall& c) { c.options().num_threads = -1; }, kInvalid, "append: num_threads is -1"},
    {"num_sms", kPlain, [](AppendCall& c) { c.options().num_sms = 4; }, TESSELLA_UNSUPPORTED,
     "append: option num_sms is for GPUs, and caches are on the CPU"},
    {"max_seqlen_new", kPlain, [](AppendCall& c) { c.options().max_seqlen_new = 2; }, kInvalid,
     "append: max_seqlen_new is 2, expected 0 or at least 3, the rows of k_new"},
    {"another_operation", kPlain, [](AppendCall& c) { c.options().kernel = "reference.merge"; }, TESSELLA_UNSUPPORTED,
     "append: kernel is reference.merge, which cannot run this call: computes merge, not append"},
};

TEST(AppendErrors, SayWhatWasGivenAndExpected) {
  for (const ExpectedError& expected : kErrors) {
    AppendCall call(expected.c), untouched(expected.c);
    expected.spoil(call);
    EXPECT_EQ(tessella_append(&call.args(), &call.options(), nullptr), expected.status) << expected.name;
    EXPECT_NE(std::string_view(tessella_last_error()).find(expected.message), std::string_view::npos)
        << expected.name << ": " << tessella_last_error();
    EXPECT_EQ(call.results(), untouched.results()) << expected.name << " wrote";
  }
}

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

struct CopyError {
  const char* name;
  std::function<void(CopyPagesCall&)> spoil;
  tessella_status status;
  const char* message;
};

const CopyError kCopyErrors[] = {
    {"no_pools", [](CopyPagesCall& c) { c.args().num_pools = 0; }, kInvalid,
     "copy_pages: num_pools is 0, expected at least 1"},
    {"pools_absent", [](CopyPagesCall& c) { c.args().pools = nullptr; }, kInvalid,
     "copy_pages: pools is NULL, expected num_pools tensors"},
    {"pairs_absent", [](CopyPagesCall& c) { c.args().pairs = nullptr; }, kInvalid,
     "copy_pages: pairs is NULL, expected a tensor"},
    {"axes", [](CopyPagesCall& c) { c.pools()[1].ndim = 3; }, kInvalid,
     "copy_pages: pools[1] has 3 axes, expected (num_pages, page_size, heads, head_dim)"},
    {"pages_differ", [](CopyPagesCall& c) { c.pools()[1].shape[0] = 11; }, kInvalid,
     "copy_pages: pools[1].shape[0] is 11, expected 12 = the pages of pools[0]"},
    {"dtypes_differ", [](CopyPagesCall& c) { c.pools()[1].dtype = TESSELLA_F16; }, kInvalid,
     "copy_pages: pools[1].dtype is f16, expected bf16 = pools[0].dtype"},
    {"pairs_shape", [](CopyPagesCall& c) { c.pairs_tensor().shape[1] = 1; }, kInvalid,
     "copy_pages: pairs has shape (3, 1), expected (n, 2) = (pairs, source and target)"},
    {"pairs_dtype", [](CopyPagesCall& c) { c.pairs_tensor().dtype = TESSELLA_I64; }, kInvalid,
     "copy_pages: pairs.dtype is i64, expected i32"},
    {"target", [](CopyPagesCall& c) { c.pairs()[0] = 0, c.pairs()[1] = 12; }, kInvalid,
     "copy_pages: pairs[0][1] is 12, expected 0 to 11, the pages of pools"},
    {"source", [](CopyPagesCall& c) { c.pairs()[2] = 12; }, kInvalid,
     "copy_pages: pairs[1][0] is 12, expected 0 to 11, the pages of pools, or a negative number for no copy"},
    {"two_sources",
     [](CopyPagesCall& c) {
       const int32_t pairs[] = {0, 5, 1, 5, 2, 6};
       std::memcpy(c.pairs(), pairs, sizeof pairs);
     },
     kInvalid,
     "copy_pages: page 5 is the target of pairs[0] and the target of pairs[1], expected a target of one pair alone"},
    {"chain",
     [](CopyPagesCall& c) {
       const int32_t pairs[] = {5, 7, 1, 5, 2, 6};
       std::memcpy(c.pairs(), pairs, sizeof pairs);
     },
     kInvalid, "copy_pages: page 5 is the target of pairs[1] and the source of pairs[0]"},
    {"read_only", [](CopyPagesCall& c) { c.pools()[0].flags = TESSELLA_READ_ONLY; }, kInvalid,
     "copy_pages: pools[0] is read-only"},
    {"pools_overlap", [](CopyPagesCall& c) { c.pools()[1].data = c.pools()[0].data; }, kInvalid,
     "copy_pages: pools[1] overlaps pools[0], expected memory of its own"},
    {"folded", [](CopyPagesCall& c) { c.pools()[1].strides[0] = 0; }, kInvalid,
     "copy_pages: pools[1] has an axis of stride 0"},
    {"num_sms", [](CopyPagesCall& c) { c.options().num_sms = 1; }, TESSELLA_UNSUPPORTED,
     "copy_pages: option num_sms is for GPUs, and pools are on the CPU"},
};

TEST(CopyPagesErrors, SayWhatWasGivenAndExpected) {
  for (const CopyError& expected : kCopyErrors) {
    CopyPagesCall call({});
    expected.spoil(call);
    EXPECT_EQ(tessella_copy_pages(&call.args(), &call.options(), nullptr), expected.status) << expected.name;
    EXPECT_NE(std::string_view(tessella_last_error()).find(expected.message), std::string_view::npos)
        << expected.name << ": " << tessella_last_error();
  }
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
