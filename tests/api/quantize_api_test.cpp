// quantize and dequantize by the C API: every error's code and sentence, where nothing is written, and plans.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "cases/quantize_call.hpp"
#include "cases/small_append.hpp"
#include "tessella/quantize.hpp"
#include "tessella/tessella.h"

namespace {

using namespace tessella::tests;

constexpr auto kInvalid = TESSELLA_INVALID_ARGUMENT;

struct ExpectedError {
  const char* name;
  QuantizeCase c;
  std::function<void(QuantizeCall&)> spoil;
  tessella_status status;
  const char* message;  // part of the message
};

const QuantizeCase kPlain{.scale_block = 2, .rotary_dim = 6};
const QuantizeCase kPacked{.scale = "bh", .packed = true, .rotary_dim = 6};
const QuantizeCase kSmooth{.smooth = true};
const QuantizeCase kShift{.heads_mean = 1};
const QuantizeCase kTransposed{.transposed = true};
const QuantizeCase kRotated{.rotary_dim = 8, .rotary_offsets = true};

const ExpectedError kErrors[] = {
    {"x_absent", kPlain, [](QuantizeCall& c) { c.args().x = nullptr; }, kInvalid,
     "quantize: x is NULL, expected a tensor"},
    {"out_absent", kPlain, [](QuantizeCall& c) { c.args().out = nullptr; }, kInvalid,
     "quantize: out is NULL, expected a tensor"},
    {"scale_absent", kPlain, [](QuantizeCall& c) { c.args().scale = nullptr; }, kInvalid,
     "quantize: scale is NULL, expected memory for the scales, or option scales_given"},
    {"sin_absent", kPlain, [](QuantizeCall& c) { c.args().rotary_sin = nullptr; }, kInvalid,
     "quantize: rotary_sin is NULL, expected it beside rotary_cos"},
    {"shift_absent", kShift, [](QuantizeCall& c) { c.args().lse_shift = nullptr; }, kInvalid,
     "quantize: lse_shift is NULL, expected it beside k_mean"},
    {"both_means", kShift, [](QuantizeCall& c) { c.args().mean = c.args().k_mean; }, kInvalid,
     "quantize: k_mean is given, expected it absent beside mean"},
    {"offsets_alone", kRotated, [](QuantizeCall& c) { c.args().rotary_cos = c.args().rotary_sin = nullptr; }, kInvalid,
     "quantize: rotary_offsets is given, expected it beside rotary_cos and rotary_sin"},
    {"x_dtype", kPlain, [](QuantizeCall& c) { edit(c.args().x).dtype = TESSELLA_I32; }, kInvalid,
     "quantize: x.dtype is i32, expected f32, bf16 or f16"},
    {"f64", kPlain, [](QuantizeCall& c) { edit(c.args().x).dtype = TESSELLA_F64; }, kInvalid,
     "quantize: x.dtype is f64, expected f32, bf16 or f16"},
    {"out_dtype", kPlain, [](QuantizeCall& c) { edit(c.args().out).dtype = TESSELLA_I8; }, kInvalid,
     "quantize: out.dtype is i8, expected f8e4m3fn or f8e5m2"},
    {"rows", kPlain, [](QuantizeCall& c) { edit(c.args().out).shape[1] = 4; }, kInvalid,
     "quantize: out.shape[1] is 4, expected 5 = the rows of x (layout batch, seqlen, heads, head_dim)"},
    {"heads", kPlain, [](QuantizeCall& c) { edit(c.args().out).shape[2] = 1; }, kInvalid,
     "quantize: out.shape[2] is 1, expected 2 = the heads of x"},
    {"head_dim", kPlain, [](QuantizeCall& c) { edit(c.args().out).shape[3] = 32; }, kInvalid,
     "quantize: out.shape[3] is 32, expected 64 = the head_dim of x"},
    {"no_head_dim", kPlain, [](QuantizeCall& c) { edit(c.args().x).shape[3] = 0; }, kInvalid,
     "quantize: head_dim of x is 0, expected at least 1"},
    {"scale_block", kPlain, [](QuantizeCall& c) { c.options().scale_block = -1; }, kInvalid,
     "quantize: scale_block is -1, expected at least 0 (all rows of a sequence)"},
    {"scale_dtype", kPlain, [](QuantizeCall& c) { edit(c.args().scale).dtype = TESSELLA_F16; }, kInvalid,
     "quantize: scale.dtype is f16, expected f32"},
    {"scale_shape", kPlain, [](QuantizeCall& c) { edit(c.args().scale).shape[1] = 2; }, kInvalid,
     "quantize: scale has shape (2, 2, 2), expected one that broadcasts to (2, 3, 2) = (batch, blocks, heads)"},
    {"mean_dtype", kSmooth, [](QuantizeCall& c) { edit(c.args().mean).dtype = TESSELLA_I32; }, kInvalid,
     "quantize: mean.dtype is i32, expected f32"},
    {"mean_heads", kSmooth, [](QuantizeCall& c) { edit(c.args().mean).shape[2] = 1; }, kInvalid,
     "quantize: mean.shape[2] is 1, expected 2 = the heads of x"},
    {"mean_rows", kSmooth, [](QuantizeCall& c) { edit(c.args().mean).shape[1] = 2; }, kInvalid,
     "quantize: mean.shape[1] is 2, expected 1 = one mean for a sequence"},
    {"k_mean_heads", kShift,
     [](QuantizeCall& c) {
       edit(c.args().k_mean).shape[2] = 3;
       edit(c.args().k_mean).strides[2] = 0;
     },
     kInvalid, "quantize: k_mean has 3 heads, expected a divisor of 2, the heads of x"},
    {"shift_shape", kShift, [](QuantizeCall& c) { edit(c.args().lse_shift).shape[2] = 4; }, kInvalid,
     "quantize: lse_shift has shape (2, 2, 4), expected (2, 2, 5) = (batch, heads, seqlen)"},
    {"packed_shift", kShift, [](QuantizeCall& c) { edit(c.args().lse_shift).dtype = TESSELLA_I32; }, kInvalid,
     "quantize: lse_shift.dtype is i32, expected f32"},
    {"transposed_shape", kTransposed, [](QuantizeCall& c) { edit(c.args().out).shape[3] = 127; }, kInvalid,
     "quantize: out has shape (2, 2, 64, 127), expected (2, 2, 64, 128) = (batch, heads, head_dim, seqlen in whole "
     "tiles of 128)"},
    {"transposed_strides", kTransposed, [](QuantizeCall& c) { edit(c.args().out).strides[3] = 2; }, kInvalid,
     "quantize: out.strides[3] is 2, expected 1: rows must be contiguous"},
    {"transposed_packed", kPacked, [](QuantizeCall& c) { edit(c.args().out).flags = TESSELLA_TRANSPOSED; }, kInvalid,
     "quantize: out is transposed, expected no such layout beside cu_seqlens"},
    {"transposed_x", kPlain, [](QuantizeCall& c) { edit(c.args().x).flags = TESSELLA_TRANSPOSED; }, kInvalid,
     "quantize: x has the flag TESSELLA_TRANSPOSED, expected it only for what quantize writes, dequantize reads, and "
     "attention reads as v"},
    {"flags", kTransposed, [](QuantizeCall& c) { edit(c.args().out).flags = 6; }, kInvalid,
     "quantize: out.flags is 6, expected 0 or TESSELLA_READ_ONLY"},
    {"rotary_axes", kPlain, [](QuantizeCall& c) { edit(c.args().rotary_cos).ndim = 1; }, kInvalid,
     "quantize: rotary_cos has 1 axes, expected (positions, rotary_dim / 2)"},
    {"rotary_dtype", kPlain, [](QuantizeCall& c) { edit(c.args().rotary_cos).dtype = TESSELLA_BF16; }, kInvalid,
     "quantize: rotary_cos.dtype is bf16, expected f32"},
    {"rotary_shapes", kPlain, [](QuantizeCall& c) { edit(c.args().rotary_sin).shape[1] = 2; }, kInvalid,
     "quantize: rotary_sin has shape ("},
    {"rotary_dim", kPlain,
     [](QuantizeCall& c) {
       edit(c.args().rotary_cos).shape[1] = 40;
       edit(c.args().rotary_sin).shape[1] = 40;
     },
     kInvalid, "quantize: rotary_cos.shape[1] is 40, expected at most 32, half the head_dim of x"},
    {"positions", kPlain,
     [](QuantizeCall& c) {
       edit(c.args().rotary_cos).shape[0] = 4;
       edit(c.args().rotary_sin).shape[0] = 4;
     },
     kInvalid, "quantize: sequence 0 has rows at positions 0 to 4, expected 0 to 3, the rows of rotary_cos"},
    {"offset", kRotated, [](QuantizeCall& c) { value(c.args().rotary_offsets, 1) = -1; }, kInvalid,
     "quantize: sequence 1 has rows at positions -1 to 3, expected 0 to"},
    {"packed_first", kPacked, [](QuantizeCall& c) { value(c.args().cu_seqlens, 0) = 1; }, kInvalid,
     "quantize: cu_seqlens[0] is 1, expected 0"},
    {"packed_falls", kPacked, [](QuantizeCall& c) { value(c.args().cu_seqlens, 1) = -1; }, kInvalid,
     "quantize: cu_seqlens[1] is -1, expected at least 0 = cu_seqlens[0]"},
    {"packed_beyond", kPacked, [](QuantizeCall& c) { value(c.args().cu_seqlens, 2) = 100; }, kInvalid,
     "quantize: cu_seqlens[2] is 100, expected at most"},
    {"switch", kPlain, [](QuantizeCall& c) { c.options().scales_given = 2; }, kInvalid,
     "quantize: scales_given is 2, expected 0 or 1"},
    {"hadamard", kPlain, [](QuantizeCall& c) { c.options().hadamard = -1; }, kInvalid,
     "quantize: hadamard is -1, expected 0 or 1"},
    {"hadamard_dim",
     {.head_dim = 24},
     [](QuantizeCall& c) { c.options().hadamard = 1; },
     kInvalid,
     "quantize: head_dim of x is 24, expected a multiple of 16 with hadamard"},
    {"interleaved_alone",
     {},
     [](QuantizeCall& c) { c.options().rotary_interleaved = 1; },
     kInvalid,
     "quantize: rotary_interleaved is 1, expected 0 without rotary_cos and rotary_sin"},
    {"max_seqlen", kPlain, [](QuantizeCall& c) { c.options().max_seqlen = 4; }, kInvalid,
     "quantize: max_seqlen is 4, expected 0 or at least 5, the rows of x"},
    {"num_threads", kPlain, [](QuantizeCall& c) { c.options().num_threads = -1; }, kInvalid,
     "quantize: num_threads is -1, expected at least 0"},
    {"num_sms", kPlain, [](QuantizeCall& c) { c.options().num_sms = 1; }, TESSELLA_UNSUPPORTED,
     "quantize: option num_sms is for GPUs, and x is on the CPU"},
    {"kernel", kPlain, [](QuantizeCall& c) { c.options().kernel = "cpu.append"; }, TESSELLA_UNSUPPORTED,
     "quantize: kernel is cpu.append, which cannot run this call: computes append, not quantize"},
    {"read_only_out", kPlain, [](QuantizeCall& c) { edit(c.args().out).flags = TESSELLA_READ_ONLY; }, kInvalid,
     "quantize: out is read-only, expected memory that may be written"},
    {"read_only_scale", kPlain, [](QuantizeCall& c) { edit(c.args().scale).flags = TESSELLA_READ_ONLY; }, kInvalid,
     "quantize: scale is read-only, expected memory that may be written"},
    {"read_only_mean", kSmooth, [](QuantizeCall& c) { edit(c.args().mean).flags = TESSELLA_READ_ONLY; }, kInvalid,
     "quantize: mean is read-only, expected memory that may be written"},
    {"out_overlaps_x", kPlain, [](QuantizeCall& c) { edit(c.args().out).data = c.args().x->data; }, kInvalid,
     "quantize: out overlaps x, expected memory of its own"},
    {"scale_overlaps_out", kPlain, [](QuantizeCall& c) { edit(c.args().scale).data = c.args().out->data; }, kInvalid,
     "quantize: scale overlaps out, expected memory of its own"},
    {"folded_out", kPlain, [](QuantizeCall& c) { edit(c.args().out).strides[1] = 0; }, kInvalid,
     "quantize: out has an axis of stride 0"},
    {"null_out", kPlain, [](QuantizeCall& c) { edit(c.args().out).data = nullptr; }, kInvalid,
     "quantize: out.data is NULL, expected memory"},
};

TEST(QuantizeErrors, SayWhatWasGivenAndExpected) {
  for (const ExpectedError& expected : kErrors) {
    QuantizeCall call(expected.c);
    expected.spoil(call);
    call.remember();
    EXPECT_EQ(tessella_quantize(&call.args(), &call.options(), nullptr), expected.status) << expected.name;
    EXPECT_NE(std::string_view(tessella_last_error()).find(expected.message), std::string_view::npos)
        << expected.name << ": " << tessella_last_error();
    const std::vector<std::byte> results = call.results();
    for (const std::byte byte : results) ASSERT_EQ(byte, std::byte{kPoison}) << expected.name;
  }
}

const ExpectedError kBackErrors[] = {
    {"x_absent", kPlain, [](QuantizeCall& c) { c.back_args().x = nullptr; }, kInvalid,
     "dequantize: x is NULL, expected a tensor"},
    {"x_dtype", kPlain, [](QuantizeCall& c) { edit(c.back_args().x).dtype = TESSELLA_U8; }, kInvalid,
     "dequantize: x.dtype is u8, expected f8e4m3fn or f8e5m2"},
    {"out_dtype", kPlain, [](QuantizeCall& c) { edit(c.back_args().out).dtype = TESSELLA_F64; }, kInvalid,
     "dequantize: out.dtype is f64, expected f32, bf16 or f16"},
    {"rows", kPlain, [](QuantizeCall& c) { edit(c.back_args().x).shape[1] = 4; }, kInvalid,
     "dequantize: x.shape[1] is 4, expected 5 = the rows of out"},
    {"transposed_out", kPlain, [](QuantizeCall& c) { edit(c.back_args().out).flags = TESSELLA_TRANSPOSED; }, kInvalid,
     "dequantize: out has the flag TESSELLA_TRANSPOSED"},
    {"read_only_out", kPlain, [](QuantizeCall& c) { edit(c.back_args().out).flags = TESSELLA_READ_ONLY; }, kInvalid,
     "dequantize: out is read-only"},
    {"overlap", kPlain, [](QuantizeCall& c) { edit(c.back_args().out).data = c.back_args().x->data; }, kInvalid,
     "dequantize: out overlaps x, expected memory of its own"},
    {"max_seqlen", kPlain, [](QuantizeCall& c) { c.back_options().max_seqlen = 3; }, kInvalid,
     "dequantize: max_seqlen is 3, expected 0 or at least 5, the rows of out"},
};

TEST(DequantizeErrors, SayWhatWasGivenAndExpected) {
  for (const ExpectedError& expected : kBackErrors) {
    QuantizeCall call(expected.c);
    expected.spoil(call);
    EXPECT_EQ(tessella_dequantize(&call.back_args(), &call.back_options(), nullptr), expected.status) << expected.name;
    EXPECT_NE(std::string_view(tessella_last_error()).find(expected.message), std::string_view::npos)
        << expected.name << ": " << tessella_last_error();
  }
}

// A plan serves calls of fewer rows; what else differs is said.
TEST(QuantizePlan, ServesFewerRows) {
  QuantizeCall large({.scale_block = 16, .seqlen = 200, .hadamard = true});
  large.options().max_seqlen = 300;
  tessella_call tagged = large.tagged();
  tessella_plan* plan = nullptr;
  ASSERT_EQ(tessella_plan_make(&tagged, &plan), TESSELLA_OK) << tessella_last_error();
  EXPECT_NE(std::string_view(tessella_plan_explain(plan)).find("hadamard"), std::string_view::npos);
  EXPECT_STREQ(tessella_plan_kernel(plan), "cpu.quantize");
  for (const int64_t seqlen : {0, 1, 16, 250}) {
    QuantizeCall call({.scale_block = 16, .seqlen = seqlen, .hadamard = true});
    call.remember();
    tagged = call.tagged();
    ASSERT_EQ(tessella_plan_run(plan, &tagged, nullptr, nullptr), TESSELLA_OK) << tessella_last_error();
    EXPECT_EQ(call.check(), "");
  }
  QuantizeCall other({.scale_block = 16, .seqlen = 200});
  tagged = other.tagged();
  EXPECT_EQ(tessella_plan_run(plan, &tagged, nullptr, nullptr), kInvalid);
  EXPECT_NE(std::string_view(tessella_last_error()).find("plan_run: hadamard is"), std::string_view::npos)
      << tessella_last_error();
  QuantizeCall longer({.scale_block = 16, .seqlen = 301, .hadamard = true});
  tagged = longer.tagged();
  EXPECT_EQ(tessella_plan_run(plan, &tagged, nullptr, nullptr), kInvalid);
  tessella_plan_free(plan);
}

TEST(QuantizePlan, OfBothOperations) {
  QuantizeCall call({});
  tessella_call tagged = call.tagged_back();
  tessella_plan* plan = nullptr;
  ASSERT_EQ(tessella_plan_make(&tagged, &plan), TESSELLA_OK) << tessella_last_error();
  EXPECT_STREQ(tessella_plan_kernel(plan), "cpu.dequantize");
  tessella_call forth = call.tagged();
  EXPECT_EQ(tessella_plan_run(plan, &forth, nullptr, nullptr), kInvalid);
  EXPECT_NE(std::string_view(tessella_last_error()).find("operation is quantize, expected dequantize"),
            std::string_view::npos)
      << tessella_last_error();
  tessella_plan_free(plan);
}

// The C++ header: there and back within half a step of e4m3.
TEST(QuantizeInCpp, ThereAndBack) {
  namespace ts = tessella;
  std::vector<float> x(2 * 20 * 2 * 32), back(x.size()), scale(2 * 2 * 2), mean(2 * 2 * 32);
  std::vector<uint8_t> out(x.size()), columns(2 * 2 * 32 * 128);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 37) / 8 - 2;
  const auto rows = [](auto& data, ts::DType dtype) { return ts::view(data.data(), dtype, {2, 20, 2, 32}); };
  const ts::TensorView scales = ts::view(scale.data(), ts::f32, {2, 2, 2});
  const ts::QuantizeArgs args{.x = rows(x, ts::f32),
                              .out = rows(out, ts::f8e4m3fn),
                              .scale = scales,
                              .mean = ts::view(mean.data(), ts::f32, {2, 1, 2, 32})};
  const ts::QuantizeOptions options{.scale_block = 16, .hadamard = true, .hadamard_seed = 5};
  ts::quantize(args, options);
  EXPECT_EQ(ts::check_quantize(args, options, 0).passed, 1);
  ts::DequantizeArgs back_args{.x = args.out, .out = rows(back, ts::f32), .scale = scales, .mean = args.mean};
  const ts::DequantizeOptions back_options{.scale_block = 16, .hadamard = true, .hadamard_seed = 5};
  ts::dequantize(back_args, back_options);
  EXPECT_EQ(ts::check_dequantize(back_args, back_options, 0).passed, 1);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(back[i], x[i], 0.3);

  // The same bits in columns, by a plan.
  const std::vector<float> before = back;
  ts::QuantizeArgs transposed = args;
  transposed.out = ts::view_transposed(columns.data(), ts::f8e4m3fn, {2, 2, 32, 128});
  ts::plan_quantize(transposed, options).run(transposed);
  back_args.x = transposed.out;
  std::fill(back.begin(), back.end(), 0.0F);
  ts::plan_dequantize(back_args, back_options).run(back_args);
  EXPECT_EQ(back, before);
}

}  // namespace
