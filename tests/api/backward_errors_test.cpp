// Every precondition of backward gives its code and a sentence with function, argument, got and expected, and a call
// that fails writes nothing.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string_view>

#include "cases/small_backward.hpp"

namespace ts = tessella;

namespace tessella::tests {
namespace {

struct ExpectedError {
  const char* name;
  std::function<void(SmallBackward&)> spoil;
  ts::ErrorCode code;
  const char* message;  // part of the message
};

constexpr auto kInvalid = ts::ErrorCode::invalid_argument;
constexpr auto kUnsupported = ts::ErrorCode::unsupported;

const int32_t kPages[] = {0, 1};
const bool kDrafts[9] = {};

const ExpectedError kErrors[] = {
    // The call of forward.
    {"q_absent", [](SmallBackward& c) { c.args.q = {}; }, kInvalid, "backward: q is NULL, expected a tensor"},
    {"out_absent", [](SmallBackward& c) { c.args.out = {}; }, kInvalid, "backward: out is NULL, expected a tensor"},
    {"lse_absent", [](SmallBackward& c) { c.args.lse = {}; }, kInvalid,
     "backward: forward.lse is NULL, expected what the call wrote"},
    {"lse_shape", [](SmallBackward& c) { c.args.lse = of_size(c.args.lse, 2, 2); }, kInvalid,
     "backward: lse has shape (2, 4, 2), expected (2, 4, 3) = (batch, heads_q, seqlen_q)"},
    {"scale", [](SmallBackward& c) { c.options.scale = INFINITY; }, kInvalid,
     "backward: scale is inf, expected a finite number"},
    {"page_table",
     [](SmallBackward& c) {
       c.args.page_table = ts::view(kPages, ts::i32, {kBatch, 1});
     },
     kUnsupported, "backward: page_table is given, and has no gradients"},
    {"cache_batch_idx", [](SmallBackward& c) { c.args.cache_batch_idx = ts::view(kPages, ts::i32, {kBatch}); },
     kUnsupported, "backward: cache_batch_idx is given, and has no gradients"},
    {"draft_mask",
     [](SmallBackward& c) {
       c.args.draft_mask = ts::view(kDrafts, ts::boolean, {kSeqlenQ, kSeqlenQ});
     },
     kUnsupported, "backward: draft_mask is given, and has no gradients"},
    {"schedule", [](SmallBackward& c) { c.args.schedule = ts::view(kPages, ts::i32, {kBatch}); }, kUnsupported,
     "backward: schedule is given, and calls whose keys are split have no gradients"},
    {"scales",
     [](SmallBackward& c) {
       static float entry;
       c.args.amax = ts::view(&entry, ts::f32, {1, 1, 1});
     },
     kUnsupported, "backward: scales is given, and has no gradients"},
    {"quantised",
     [](SmallBackward& c) {
       for (ts::TensorView* view : {&c.args.k, &c.args.v}) {
         tessella_tensor bytes = view->c_tensor();
         bytes.dtype = TESSELLA_I8;
         *view = ts::TensorView(bytes);
       }
     },
     kUnsupported, "backward: k.dtype is i8, expected f32 as of q: quantised caches have no gradients"},
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
     [](SmallBackward& c) {
       c.gradients.d_out = with(c.gradients.d_out, [](tessella_tensor& t) { t.strides[3] = 2; });
     },
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
     "backward: kernel is reference.attention, which cannot run this call: computes forward, not backward"},
    {"unknown_kernel", [](SmallBackward& c) { c.options.kernel = "nobody"; }, kInvalid,
     "backward: kernel is \"nobody\""},
};

TEST(BackwardErrors, SayWhatWasGivenAndExpectedAndTouchNothing) {
  for (const ExpectedError& expected : kErrors) {
    SmallBackward call;
    expected.spoil(call);
    try {
      ts::backward(call.args, call.gradients, call.options);
      ADD_FAILURE() << expected.name << " ran";
    } catch (const ts::Error& error) {
      EXPECT_EQ(error.code(), expected.code) << expected.name << ": " << error.what();
      EXPECT_NE(std::string_view(error.what()).find(expected.message), std::string_view::npos)
          << expected.name << ": " << error.what();
    }
    EXPECT_TRUE(call.is_untouched()) << expected.name << " wrote";
  }
}

TEST(BackwardErrors, BitsOfAnotherDtypeNameBoth) {
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

}  // namespace
}  // namespace tessella::tests
