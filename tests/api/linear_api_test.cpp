// linear through the API: every error with its code and sentence, where nothing is written, plans, questions, C++.
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cases/linear_call.hpp"
#include "cases/small_append.hpp"
#include "cases/small_linear.hpp"
#include "tessella/linear.hpp"
#include "tessella/tessella.h"

namespace ts = tessella;

namespace {

using namespace tessella::tests;

constexpr auto kInvalid = TESSELLA_INVALID_ARGUMENT, kUnsupported = TESSELLA_UNSUPPORTED;

const LinearCase kF64{.kernel = "reference.linear",
                      .dtype = TESSELLA_F64,
                      .w_dtype = TESSELLA_F64,
                      .out_dtype = TESSELLA_F64,
                      .bias_dtype = TESSELLA_F64,
                      .rows = 3,
                      .in_features = 8,
                      .out_features = 6};

const LinearCase kBf16{.kernel = "reference.linear",
                       .dtype = TESSELLA_BF16,
                       .w_dtype = TESSELLA_BF16,
                       .out_dtype = TESSELLA_BF16,
                       .bias_dtype = TESSELLA_BF16,
                       .rows = 3,
                       .in_features = 8,
                       .out_features = 6};

using Args = tessella_linear_args;
using Options = tessella_linear_options;

struct ExpectedError {
  const char* name;
  const LinearCase& c;
  std::function<void(Args&, Options&)> spoil;
  tessella_status status;
  const char* message;  // part of the message
};

void move(const tessella_tensor* t, const tessella_tensor* to, int64_t bytes = 0) {
  edit(t).data = static_cast<char*>(to->data) + bytes;
}

const ExpectedError kErrors[] = {
    {"x_absent", kPlain, [](Args& a, Options&) { a.x = nullptr; }, kInvalid, "linear: x is NULL, expected a tensor"},
    {"w_absent", kPlain, [](Args& a, Options&) { a.w = nullptr; }, kInvalid, "linear: w is NULL, expected a tensor"},
    {"out_absent", kPlain, [](Args& a, Options&) { a.out = nullptr; }, kInvalid,
     "linear: out is NULL, expected a tensor"},
    {"scale_absent", kStored, [](Args& a, Options&) { a.w_scale = nullptr; }, kInvalid,
     "linear: w_scale is NULL, expected it beside w of i8 or f8e4m3fn"},
    {"scale_of_floats", kPlain, [](Args& a, Options&) { a.w_scale = a.bias; }, kInvalid,
     "linear: w_scale is given, expected it only beside w of i8 or f8e4m3fn"},
    {"x_without_memory", kPlain, [](Args& a, Options&) { edit(a.x).data = nullptr; }, kInvalid,
     "linear: x.data is NULL, expected memory"},
    {"w_without_memory", kPlain, [](Args& a, Options&) { edit(a.w).data = nullptr; }, kInvalid,
     "linear: w.data is NULL, expected memory"},
    {"scale_without_memory", kStored, [](Args& a, Options&) { edit(a.w_scale).data = nullptr; }, kInvalid,
     "linear: w_scale.data is NULL, expected memory"},
    {"bias_without_memory", kPlain, [](Args& a, Options&) { edit(a.bias).data = nullptr; }, kInvalid,
     "linear: bias.data is NULL, expected memory"},
    {"residual_without_memory", kPlain, [](Args& a, Options&) { edit(a.residual).data = nullptr; }, kInvalid,
     "linear: residual.data is NULL, expected memory"},
    {"out_without_memory", kPlain, [](Args& a, Options&) { edit(a.out).data = nullptr; }, kInvalid,
     "linear: out.data is NULL, expected memory"},

    {"x_axes", kPlain, [](Args& a, Options&) { edit(a.x).ndim = 3; }, kInvalid, "linear: x has shape (3, 8, 0), exp"},
    {"w_axes", kPlain, [](Args& a, Options&) { edit(a.w).ndim = 1; }, kInvalid,
     "linear: w has shape (6), expected two axes, in_features the last"},
    {"out_axes", kPlain, [](Args& a, Options&) { edit(a.out).ndim = 1; }, kInvalid,
     "linear: out has shape (3), expected two axes, out_features the last"},
    {"residual_axes", kPlain, [](Args& a, Options&) { edit(a.residual).ndim = 1; }, kInvalid,
     "linear: residual has shape (3), expected two axes, out_features the last"},
    {"bias_axes", kPlain,
     [](Args& a, Options&) {
       edit(a.bias).ndim = 2;
       edit(a.bias).shape[1] = 1;
     },
     kInvalid, "linear: bias has shape (6, 1), expected (6) = (w.shape[0])"},
    {"no_axes", kPlain, [](Args& a, Options&) { edit(a.x).ndim = 0; }, kInvalid, "linear: x.ndim is 0, expected 1 to"},
    {"too_many_axes", kPlain, [](Args& a, Options&) { edit(a.w).ndim = 1 << 30; }, kInvalid, "linear: w.ndim is 107"},
    {"x_strided", kPlain, [](Args& a, Options&) { edit(a.x).strides[1] = 2; }, kInvalid,
     "linear: x.strides[1] is 2, expected 1: in_features must be contiguous"},
    {"w_strided", kPlain, [](Args& a, Options&) { edit(a.w).strides[1] = 0; }, kInvalid,
     "linear: w.strides[1] is 0, expected 1: in_features must be contiguous"},
    {"out_strided", kPlain, [](Args& a, Options&) { edit(a.out).strides[1] = 2; }, kInvalid,
     "linear: out.strides[1] is 2, expected 1: out_features must be contiguous"},
    {"bias_strided", kPlain, [](Args& a, Options&) { edit(a.bias).strides[0] = 0; }, kInvalid,
     "linear: bias.strides[0] is 0, expected 1: it must be contiguous"},
    {"negative_stride", kPlain, [](Args& a, Options&) { edit(a.x).strides[0] = -8; }, kInvalid,
     "linear: x.strides[0] is -8, expected at least 0"},
    {"negative_shape", kPlain, [](Args& a, Options&) { edit(a.w).shape[0] = -6; }, kInvalid,
     "linear: w.shape[0] is -6, expected at least 0"},
    {"not_aligned", kPlain, [](Args& a, Options&) { move(a.w, a.w, 1); }, kInvalid,
     "linear: w.data is not aligned, expected a multiple of 4 bytes for f32"},

    {"x_dtype", kPlain, [](Args& a, Options&) { edit(a.x).dtype = TESSELLA_I32; }, kInvalid,
     "linear: x.dtype is i32, expected f64, f32, bf16 or f16"},
    {"x_of_8_bits", kPlain, [](Args& a, Options&) { edit(a.x).dtype = TESSELLA_F8E4M3FN; }, kInvalid,
     "linear: x.dtype is f8e4m3fn, expected f64, f32, bf16 or f16"},
    {"no_dtype", kPlain, [](Args& a, Options&) { edit(a.x).dtype = 99; }, kInvalid,
     "linear: x.dtype is 99, expected one of tessella_dtype"},
    {"w_dtype", kPlain, [](Args& a, Options&) { edit(a.w).dtype = TESSELLA_BF16; }, kInvalid,
     "linear: w.dtype is bf16, expected f32 = x.dtype, i8 or f8e4m3fn"},
    {"w_of_e5m2", kStored, [](Args& a, Options&) { edit(a.w).dtype = TESSELLA_F8E5M2; }, kInvalid,
     "linear: w.dtype is f8e5m2, expected f32 = x.dtype, i8 or f8e4m3fn"},
    {"w_of_bytes", kStored, [](Args& a, Options&) { edit(a.w).dtype = TESSELLA_U8; }, kInvalid,
     "linear: w.dtype is u8, expected f32 = x.dtype, i8 or f8e4m3fn"},
    {"scale_dtype", kStored, [](Args& a, Options&) { edit(a.w_scale).dtype = TESSELLA_F16; }, kInvalid,
     "linear: w_scale.dtype is f16, expected f32"},
    {"bias_dtype", kPlain, [](Args& a, Options&) { edit(a.bias).dtype = TESSELLA_BF16; }, kInvalid,
     "linear: bias.dtype is bf16, expected f32 = x.dtype"},
    {"bias_beside_bf16", kBf16, [](Args& a, Options&) { edit(a.bias).dtype = TESSELLA_F16; }, kInvalid,
     "linear: bias.dtype is f16, expected bf16 = x.dtype, or f32"},
    {"bias_of_f64", kF64, [](Args& a, Options&) { edit(a.bias).dtype = TESSELLA_F32; }, kInvalid,
     "linear: bias.dtype is f32, expected f64 = x.dtype"},
    {"out_dtype", kPlain, [](Args& a, Options&) { edit(a.out).dtype = TESSELLA_F16; }, kInvalid,
     "linear: out.dtype is f16, expected f32 = x.dtype"},
    {"out_of_f64", kF64, [](Args& a, Options&) { edit(a.out).dtype = TESSELLA_F32; }, kInvalid,
     "linear: out.dtype is f32, expected f64 = x.dtype"},
    {"residual_dtype", kPlain, [](Args& a, Options&) { edit(a.residual).dtype = TESSELLA_BF16; }, kInvalid,
     "linear: residual.dtype is bf16, expected f32 = out.dtype"},

    {"no_in_features", kPlain, [](Args& a, Options&) { edit(a.x).shape[1] = 0; }, kInvalid,
     "linear: x.shape[1] is 0, expected at least 1: in_features"},
    {"no_out_features", kPlain, [](Args& a, Options&) { edit(a.w).shape[0] = 0; }, kInvalid,
     "linear: w.shape[0] is 0, expected at least 1: out_features"},
    {"in_features", kPlain, [](Args& a, Options&) { edit(a.w).shape[1] = 7; }, kInvalid,
     "linear: w.shape[1] is 7, expected 8 = x.shape[1]; w is (out_features, in_features)"},
    {"transposed_w", kPlain, [](Args& a, Options&) { std::swap(edit(a.w).shape[0], edit(a.w).shape[1]); }, kInvalid,
     "linear: w.shape[1] is 6, expected 8 = x.shape[1]; w is (out_features, in_features), is this its transpose?"},
    {"odd_swiglu", kSwiglu, [](Args& a, Options&) { edit(a.w).shape[0] = 11; }, kInvalid,
     "linear: w.shape[0] is 11, expected an even number with swiglu: (2 out_features, in_features)"},
    {"scale_shape", kStored, [](Args& a, Options&) { edit(a.w_scale).shape[0] = 1; }, kInvalid,
     "linear: w_scale has shape (1), expected (6) = (w.shape[0])"},
    {"bias_shape", kPlain, [](Args& a, Options&) { edit(a.bias).shape[0] = 5; }, kInvalid,
     "linear: bias has shape (5), expected (6) = (w.shape[0])"},
    {"out_rows", kPlain, [](Args& a, Options&) { edit(a.out).shape[0] = 2; }, kInvalid,
     "linear: out.shape[0] is 2, expected 3 = x.shape[0]"},
    {"out_features", kPlain, [](Args& a, Options&) { edit(a.out).shape[1] = 5; }, kInvalid,
     "linear: out.shape[1] is 5, expected 6 = w.shape[0]"},
    {"out_of_swiglu", kSwiglu, [](Args& a, Options&) { edit(a.out).shape[1] = 12; }, kInvalid,
     "linear: out.shape[1] is 12, expected 6 = w.shape[0] / 2"},
    {"residual_rows", kPlain, [](Args& a, Options&) { edit(a.residual).shape[0] = 1; }, kInvalid,
     "linear: residual.shape[0] is 1, expected 3 = x.shape[0]"},
    {"residual_of_swiglu", kSwiglu, [](Args& a, Options&) { edit(a.residual).shape[1] = 12; }, kInvalid,
     "linear: residual.shape[1] is 12, expected 6 = w.shape[0] / 2"},

    {"flags", kPlain, [](Args& a, Options&) { edit(a.w).flags = 4; }, kInvalid,
     "linear: w.flags is 4, expected 0 or TESSELLA_READ_ONLY"},
    {"transposed", kPlain, [](Args& a, Options&) { edit(a.w).flags = TESSELLA_TRANSPOSED; }, kInvalid,
     "linear: w has the flag TESSELLA_TRANSPOSED, expected it only for what quantize writes"},
    {"reserved", kPlain, [](Args& a, Options&) { edit(a.bias).reserved[2] = 1; }, kInvalid,
     "linear: bias.reserved is 1, expected zeros"},
    {"device", kPlain, [](Args& a, Options&) { edit(a.w).device_type = 7; }, kInvalid,
     "linear: w.device_type is 7, expected TESSELLA_CPU, TESSELLA_CUDA or the default"},
    {"devices", kPlain,
     [](Args& a, Options&) {
       edit(a.x).device_type = TESSELLA_CPU;
       edit(a.bias).device_type = TESSELLA_CUDA;
     },
     kInvalid, "linear: bias is on cuda:0, expected the CPU = the device of x"},
    {"read_only", kPlain, [](Args& a, Options&) { edit(a.out).flags = TESSELLA_READ_ONLY; }, kInvalid,
     "linear: out is read-only, expected memory that may be written"},

    {"activation", kPlain, [](Args&, Options& o) { o.activation = 2; }, kInvalid,
     "linear: activation is 2, expected TESSELLA_ACTIVATION_NONE or TESSELLA_SWIGLU"},
    {"activation_below", kPlain, [](Args&, Options& o) { o.activation = -1; }, kInvalid, "linear: activation is -1"},
    {"weights_ready", kPlain, [](Args&, Options& o) { o.weights_ready = 2; }, kInvalid,
     "linear: weights_ready is 2, expected 0 or 1"},
    {"batch_invariant", kPlain, [](Args&, Options& o) { o.batch_invariant = -1; }, kInvalid,
     "linear: batch_invariant is -1, expected 0 or 1"},
    {"max_rows", kPlain, [](Args&, Options& o) { o.max_rows = 2; }, kInvalid,
     "linear: max_rows is 2, expected 0 or at least 3, the rows of x"},
    {"max_rows_below", kPlain, [](Args&, Options& o) { o.max_rows = -1; }, kInvalid,
     "linear: max_rows is -1, expected 0 or at least 3, the rows of x"},
    {"num_threads", kPlain, [](Args&, Options& o) { o.num_threads = -1; }, kInvalid,
     "linear: num_threads is -1, expected at least 0"},
    {"num_sms", kPlain, [](Args&, Options& o) { o.num_sms = 4; }, kUnsupported,
     "linear: option num_sms is for GPUs, and x is on the CPU"},
    {"kernel_of_another_operation", kPlain, [](Args&, Options& o) { o.kernel = "reference.merge"; }, kUnsupported,
     "linear: kernel is reference.merge, which cannot run this call: computes merge, not linear"},
    {"unknown_kernel", kPlain, [](Args&, Options& o) { o.kernel = "nobody"; }, kInvalid,
     "linear: kernel is \"nobody\""},

    {"folded", kPlain, [](Args& a, Options&) { edit(a.out).strides[0] = 0; }, kInvalid,
     "linear: out has an axis of stride 0, expected at least 6 so that no two elements share memory"},
    {"folded_rows", kPlain, [](Args& a, Options&) { edit(a.out).strides[0] = 5; }, kInvalid, "linear: out has a"},
    {"out_over_x", kPlain, [](Args& a, Options&) { move(a.out, a.x); }, kInvalid,
     "linear: out overlaps x, expected memory of its own"},
    {"out_over_w", kPlain, [](Args& a, Options&) { move(a.out, a.w, 40); }, kInvalid,
     "linear: out overlaps w, expected memory of its own"},
    {"out_over_scale", kStored, [](Args& a, Options&) { move(a.out, a.w_scale, 8); }, kInvalid,
     "linear: out overlaps w_scale, expected memory of its own"},
    {"out_over_bias", kPlain, [](Args& a, Options&) { move(a.out, a.bias); }, kInvalid,
     "linear: out overlaps bias, expected memory of its own"},
    {"residual_moved", kPlain, [](Args& a, Options&) { move(a.residual, a.out, 4); }, kInvalid,
     "linear: out overlaps residual, expected memory of its own, or the same view"},
    {"residual_in_other_rows", kPlain,
     [](Args& a, Options&) {
       move(a.residual, a.out);
       edit(a.residual).strides[0] = 0;
     },
     kInvalid, "linear: out overlaps residual, expected memory of its own, or the same view"},
    {"out_over_cancel", kPlain,
     [](Args& a, Options& o) { o.cancel = static_cast<const int32_t*>(a.out->data) + 7; }, kInvalid,
     "linear: out overlaps cancel, expected memory of its own"},

    {"sizes", kPlain, [](Args& a, Options&) { edit(a.x).shape[0] = kMost; }, kInvalid, "expected one whose bytes fit"},
    {"many_in_features", kPlain, [](Args& a, Options&) { edit(a.x).shape[1] = edit(a.w).shape[1] = kMost / 64; },
     kUnsupported, "linear: in_features is 144115188075855871, expected at most 2147482623"},
    {"many_rows", kPlain,
     [](Args& a, Options&) {
       for (const auto* t : {a.x, a.out, a.residual}) {
         edit(t).shape[0] = int64_t{1} << 31;
         edit(t).strides[0] = 0;
       }
     },
     kUnsupported, "linear: the rows of x is 2147483648, expected at most 2147482623"},
    {"many_columns", kPlain, [](Args& a, Options&) { edit(a.x).shape[1] = edit(a.w).shape[1] = int64_t{1} << 31; },
     kUnsupported, "linear: in_features is 2147483648, expected at most 2147482623"},
    {"many_weights", kSwiglu,
     [](Args& a, Options&) {
       edit(a.w).shape[0] = int64_t{1} << 32;
       edit(a.w).strides[0] = 0;
       edit(a.out).shape[1] = edit(a.residual).shape[1] = int64_t{1} << 31;
     },
     kUnsupported, "linear: the rows of w is 4294967296, expected at most 2147482623"},
};

TEST(LinearErrors, SayWhatWasGivenAndExpected) {
  for (const ExpectedError& expected : kErrors) {
    LinearCall call(expected.c);
    const LinearCall untouched(expected.c);
    Args args = call.args();
    expected.spoil(args, call.options());
    EXPECT_EQ(tessella_linear(&args, &call.options(), nullptr), expected.status) << expected.name;
    EXPECT_NE(std::string_view(tessella_last_error()).find(expected.message), std::string_view::npos)
        << expected.name << ": " << tessella_last_error();
    EXPECT_EQ(call.results(), untouched.results()) << expected.name << " wrote";
  }
}

// A check says the same after its own name; out may be read-only there, and no kernel runs. Questions only answer.
TEST(LinearErrors, OfChecksAndQuestions) {
  for (const ExpectedError& expected : kErrors) {
    LinearCall call(expected.c);
    Args args = call.args();
    expected.spoil(args, call.options());
    const tessella_call tagged{sizeof tagged, TESSELLA_LINEAR, &args, &call.options()};
    tessella_plan* plan = nullptr;
    tessella_plan_make(&tagged, &plan);
    tessella_plan_free(plan);
    const char* reason = nullptr;
    tessella_kernel_refusal(0, &tagged, &reason);
    tessella_kernel_cost cost = TESSELLA_KERNEL_COST_INIT;
    tessella_kernel_cost_of(0, &tagged, &cost);
    const std::string_view name = expected.name, message = expected.message;
    if (name == "read_only" || name.find("kernel") != name.npos) continue;
    tessella_check_report report = TESSELLA_CHECK_REPORT_INIT;
    EXPECT_EQ(tessella_check(&tagged, 0, 0, &report), expected.status) << name;
    const std::string said =
        message.starts_with("linear: ") ? "check: " + std::string(message.substr(8)) : std::string(message);
    EXPECT_NE(std::string_view(tessella_last_error()).find(said), std::string_view::npos)
        << name << ": " << tessella_last_error();
  }
}

TEST(LinearChecks, WantTheResidual) {
  LinearCase c = kPlain;
  c.in_place = true;
  LinearCall call(c);
  ASSERT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();
  const Args args = call.args();
  const tessella_call tagged{sizeof tagged, TESSELLA_LINEAR, &args, nullptr};
  tessella_check_report report = TESSELLA_CHECK_REPORT_INIT;
  EXPECT_EQ(tessella_check(&tagged, 0, 0, &report), kInvalid);
  EXPECT_STREQ(tessella_last_error(),
               "check: residual is out, expected memory of its own: the call has written over what it read");
}

TEST(LinearPlans, ExplainAndRun) {
  LinearCall call(kPlain);
  call.options().max_rows = 64;
  call.options().batch_invariant = 1;
  Args args = call.args();
  const tessella_call tagged{sizeof tagged, TESSELLA_LINEAR, &args, &call.options()};
  tessella_plan* plan = nullptr;
  ASSERT_EQ(tessella_plan_make(&tagged, &plan), TESSELLA_OK) << tessella_last_error();
  const std::string message = tessella_plan_explain(plan);
  for (const char* part : {"operation=linear device=cpu", "rows=64", "in_features=8", "out_features=6", "x.dtype=f32",
                           "w.dtype=f32", "bias.dtype=f32", "residual.dtype=f32", "batch_invariant"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " in\n" << message;
  }
  call.remember();
  ASSERT_EQ(tessella_plan_run(plan, &tagged, nullptr, nullptr), TESSELLA_OK) << tessella_last_error();
  EXPECT_EQ(call.check(), "");

  const auto expect_error = [&](LinearCase other, const char* sentence, auto&& spoil) {
    LinearCall planned(other);
    planned.options().batch_invariant = 1;
    Args given = planned.args();
    spoil(given, planned.options());
    const tessella_call differs{sizeof differs, TESSELLA_LINEAR, &given, &planned.options()};
    EXPECT_EQ(tessella_plan_run(plan, &differs, nullptr, nullptr), kInvalid) << sentence;
    EXPECT_STREQ(tessella_last_error(), sentence);
  };
  const auto nothing = [](Args&, Options&) {};
  LinearCase other = kPlain;
  other.rows = 65;
  expect_error(other, "plan_run: rows is 65, expected at most 64, the plan's bound", nothing);
  other = kPlain;
  other.out_features = 7;
  expect_error(other, "plan_run: out_features is 7, expected 6, what the plan was made for", nothing);
  expect_error(kPlain, "plan_run: batch_invariant is 0, expected 1, what the plan was made for",
               [](Args&, Options& o) { o.batch_invariant = 0; });
  expect_error(kPlain, "plan_run: bias.dtype is none, expected f32, what the plan was made for",
               [](Args& a, Options&) { a.bias = nullptr; });
  expect_error(kPlain, "plan_run: out overlaps x, expected memory of its own",
               [](Args& a, Options&) { move(a.out, a.x); });
  tessella_merge_args merge = TESSELLA_MERGE_ARGS_INIT;
  const tessella_call of_another{sizeof of_another, TESSELLA_MERGE, &merge, nullptr};
  EXPECT_EQ(tessella_plan_run(plan, &of_another, nullptr, nullptr), kInvalid);
  tessella_plan_free(plan);
}

// A plan wants no memory, only where it is.
TEST(LinearPlans, WantNoMemory) {
  LinearCall call(kSwiglu);
  const Args args = call.args();
  for (const tessella_tensor* t : {args.x, args.w, args.residual, args.out}) {
    edit(t).data = nullptr;
    edit(t).device_type = TESSELLA_CPU;
  }
  const tessella_call tagged{sizeof tagged, TESSELLA_LINEAR, &args, &call.options()};
  tessella_plan* plan = nullptr;
  ASSERT_EQ(tessella_plan_make(&tagged, &plan), TESSELLA_OK) << tessella_last_error();
  EXPECT_EQ(tessella_plan_run(plan, &tagged, nullptr, nullptr), kInvalid);
  EXPECT_STREQ(tessella_last_error(), "plan_run: x.data is NULL, expected memory");
  tessella_plan_free(plan);
}

TEST(LinearPlans, KernelsSayWhy) {
  LinearCall call(kPlain);
  const Args args = call.args();
  const tessella_call tagged{sizeof tagged, TESSELLA_LINEAR, &args, nullptr};
  for (int32_t idx = 0; idx < tessella_kernel_count(); ++idx) {
    tessella_kernel_info info = TESSELLA_KERNEL_INFO_INIT;
    ASSERT_EQ(tessella_kernel_describe(idx, &info), TESSELLA_OK);
    const char* reason = nullptr;
    ASSERT_EQ(tessella_kernel_refusal(idx, &tagged, &reason), TESSELLA_OK) << tessella_last_error();
    if (std::string_view(info.operation) != "linear") {
      EXPECT_EQ(reason, std::string("computes ") + info.operation + ", not linear") << info.name;
    } else if (std::string_view(info.device) == "cuda") {
      EXPECT_STREQ(reason, "runs on cuda tensors, and x is on the CPU") << info.name;
    }
    tessella_kernel_cost cost = TESSELLA_KERNEL_COST_INIT;
    EXPECT_EQ(tessella_kernel_cost_of(idx, &tagged, &cost), kUnsupported) << info.name;
  }
}

TEST(LinearCpp, TakesOptionsAndPlans) {
  LinearCall call(kPlain);
  const Args c = call.args();
  const ts::LinearArgs args{.x = ts::TensorView(*c.x),
                            .w = ts::TensorView(*c.w),
                            .bias = ts::TensorView(*c.bias),
                            .residual = ts::TensorView(*c.residual),
                            .out = ts::TensorView(*c.out)};
  call.remember();
  ts::linear(args, {.num_threads = 1, .kernel = "reference.linear"});
  EXPECT_EQ(call.check(), "");
  EXPECT_NE(ts::check_linear(args, {}, 0).passed, 0);
  EXPECT_EQ(ts::check_linear(args, {}, 2).rows, 2);
  static_cast<float*>(c.out->data)[3] += 1;
  EXPECT_EQ(ts::check_linear(args, {}, 0).passed, 0);

  const ts::LinearPlan plan = ts::plan_linear(args, {.max_rows = 64, .kernel = "reference.linear"});
  plan.run(args);
  EXPECT_NE(ts::check_linear(args, {}, 0).passed, 0);
  EXPECT_NE(plan.explain().find("rows=64"), std::string::npos);

  ts::LinearArgs gated{.x = args.x, .w = args.w, .out = ts::view(c.out->data, ts::f32, {3, 3})};
  ts::linear(gated, {.activation = ts::Activation::swiglu, .kernel = "reference.linear"});
  EXPECT_NE(ts::check_linear(gated, {.activation = ts::Activation::swiglu}, 0).passed, 0);
  EXPECT_EQ(ts::check_linear({.x = args.x, .w = args.w, .residual = args.residual, .out = args.out}, {}, 0).passed, 0);

  std::atomic<int32_t> cancel = 1;
  const std::vector<std::byte> before = call.results();
  for (const bool planned : {false, true}) {
    try {
      if (planned) {
        ts::plan_linear(args, {.kernel = "reference.linear", .cancel = &cancel}).run(args);
      } else {
        ts::linear(args, {.kernel = "reference.linear", .cancel = &cancel});
      }
      ADD_FAILURE() << "it ran";
    } catch (const ts::Error& error) {
      EXPECT_EQ(error.code(), ts::ErrorCode::cancelled);
      EXPECT_EQ(std::string_view(error.what()), std::string(planned ? "plan_run" : "linear") +
                                                    ": the call was cancelled before it began; nothing was touched");
    }
    EXPECT_EQ(call.results(), before);
  }
}

// An older program's shorter structs mean defaults; a newer one's unknown field is an error.
TEST(LinearStructs, MayGrow) {
  LinearCall call(kF64);             // which the reference computes unnamed
  call.options().kernel = "nobody";  // behind the end
  call.options().max_rows = -1;
  call.options().struct_size = offsetof(Options, max_rows);
  Args args = call.args();
  EXPECT_EQ(tessella_linear(&args, &call.options(), nullptr), TESSELLA_OK) << tessella_last_error();
  EXPECT_EQ(tessella_linear(&args, nullptr, nullptr), TESSELLA_OK) << tessella_last_error();
  args.struct_size = offsetof(Args, out);
  EXPECT_EQ(tessella_linear(&args, nullptr, nullptr), kInvalid);
  EXPECT_STREQ(tessella_last_error(), "linear: out is NULL, expected a tensor");
  for (const size_t size : {size_t{0}, size_t{1}, sizeof(size_t)}) {
    args.struct_size = size;
    EXPECT_EQ(tessella_linear(&args, nullptr, nullptr), kInvalid) << size;
  }
  EXPECT_EQ(tessella_linear(nullptr, nullptr, nullptr), kInvalid);
  struct {
    Args args;
    int64_t unknown;
  } newer{call.args(), 1};
  newer.args.struct_size = sizeof newer;
  EXPECT_EQ(tessella_linear(&newer.args, nullptr, nullptr), kUnsupported);
  EXPECT_NE(std::string_view(tessella_last_error()).find("linear: args sets a field at byte"), std::string_view::npos)
      << tessella_last_error();
}

}  // namespace
