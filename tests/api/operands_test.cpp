// What the API knows and few kernels compute, or none: dtypes of 8 and 4 bits, k and v with dtypes of their own,
// scales, slices, classes of queries. Each is checked by the API and unsupported by every other kernel with its reason.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cases/kernels.hpp"
#include "cases/small_call.hpp"
#include "operations/attention/shape.hpp"
#include "tessella/attention.hpp"
#include "tessella/quantize.hpp"

namespace ts = tessella;

namespace {

using namespace tessella::tests;

uint8_t g_bytes[4096] = {};
float g_factors[64] = {};

ts::TensorView factors(std::initializer_list<int64_t> shape) { return ts::view(g_factors, ts::f32, shape); }

// The message of the error, "" where the call runs; its code is expected.
std::string error_of_call(const SmallCall& call, ts::ErrorCode code) {
  try {
    ts::forward(call.args, call.options);
    return "";
  } catch (const ts::Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
}
std::string invalid(const SmallCall& call) { return error_of_call(call, ts::ErrorCode::invalid_argument); }
std::string unsupported(const SmallCall& call) { return error_of_call(call, ts::ErrorCode::unsupported); }

// Every kernel of the CPU that this machine can run gives this reason.
void expect_reason(const SmallCall& call, const std::string& reason,
                   const std::function<bool(const std::string&)>& except = {}) {
  const ts::detail::ForwardCall c(call.args, call.options);
  int asked = 0;
  for (int32_t idx = 0; idx < tessella_kernel_count(); ++idx) {
    tessella_kernel_info info = TESSELLA_KERNEL_INFO_INIT;
    ASSERT_EQ(tessella_kernel_describe(idx, &info), TESSELLA_OK);
    if (std::string(info.operation) != "forward") continue;
    if (info.unavailable[0] != '\0' || std::string(info.device) != "cpu") continue;
    const char* got = nullptr;
    ASSERT_EQ(tessella_kernel_refusal(idx, &c.tagged, &got), TESSELLA_OK) << tessella_last_error();
    if (except && except(info.name)) {
      EXPECT_STREQ(got, "") << info.name;
    } else if (std::string(info.dtypes) != "bf16") {  // such a kernel says so first
      EXPECT_EQ(got, reason) << info.name;
    }
    ++asked;
  }
  EXPECT_GT(asked, 5);
}

void set_dtype(SmallCall& call, ts::DType dtype) {
  call.args.q = ts::view(g_bytes, dtype, {kBatch, kSeqlenQ, kHeadsQ, kDim});
  call.args.k = ts::view(g_bytes, dtype, {kBatch, kSeqlenKv, kHeadsKv, kDim});
  call.args.v = ts::view(g_bytes, dtype, {kBatch, kSeqlenKv, kHeadsKv, kDim});
}

struct Named {
  ts::DType dtype;
  const char* name;
  int64_t bits;
};
constexpr Named kQuantized[] = {
    {ts::f8e4m3fn, "f8e4m3fn", 8}, {ts::f8e5m2, "f8e5m2", 8}, {ts::i8, "i8", 8}, {ts::i4, "i4", 4}};

// q, k, v and out of fp8.
bool takes_float8(const std::string& kernel) {
  return kernel == "reference.attention" || kernel == "cpu.forward_widened";
}

TEST(Operands, QOfFloat8IsTakenByFewKernels) {
  for (const Named& dtype : {kQuantized[0], kQuantized[1]}) {
    EXPECT_EQ(ts::size_bits(dtype.dtype), dtype.bits);
    for (const ts::DType out : {ts::f32, ts::bf16, ts::f16, ts::f8e4m3fn, ts::f8e5m2}) {
      SmallCall call;
      set_dtype(call, dtype.dtype);
      call.args.out = ts::view(call.out.data(), out, {kBatch, kSeqlenQ, kHeadsQ, kDim});
      EXPECT_NO_THROW(ts::forward(call.args, call.options));
      expect_reason(call, std::string("does not compute ") + dtype.name, takes_float8);
    }
    SmallCall call;
    set_dtype(call, dtype.dtype);
    call.args.v = ts::view(g_bytes, ts::i8, {kBatch, kSeqlenKv, kHeadsKv, kDim});
    EXPECT_EQ(invalid(call),
              std::string("forward: v.dtype is i8, expected ") + dtype.name + " = q.dtype, as q is of 8 bits");
  }
}

TEST(Operands, QOfIntegersIsUnsupportedByEveryKernel) {
  for (const Named& dtype : {kQuantized[2], kQuantized[3]}) {
    EXPECT_EQ(ts::size_bits(dtype.dtype), dtype.bits);
    for (const ts::DType out : {ts::f32, ts::bf16, ts::f16}) {
      SmallCall call;
      set_dtype(call, dtype.dtype);
      call.args.out = ts::view(call.out.data(), out, {kBatch, kSeqlenQ, kHeadsQ, kDim});
      const std::string message = unsupported(call);
      EXPECT_EQ(message,
                std::string("forward: q.dtype is ") + dtype.name +
                    ", and no forward kernel on the CPU computes it, expected f64, f32, bf16, f16, f8e4m3fn or f8e5m2");
      expect_reason(call, std::string("does not compute ") + dtype.name);
    }
  }
}

bool takes_quantized(const std::string& kernel) { return takes_float8(kernel) || kernel.starts_with("cpu.decode"); }

TEST(Operands, KAndVHaveADtypeOfTheirOwn) {
  for (const Named& dtype : kQuantized) {
    const bool has_kernels = dtype.dtype != ts::f8e5m2;
    SmallCall call;
    call.args.k = ts::view(g_bytes, dtype.dtype, {kBatch, kSeqlenKv, kHeadsKv, kDim});
    call.args.v = ts::view(g_bytes, dtype.dtype, {kBatch, kSeqlenKv, kHeadsKv, kDim});
    call.args.k_scale = call.args.v_scale = factors({1});
    expect_reason(call, std::string("does not compute k.dtype ") + dtype.name + " beside q.dtype f32",
                  [&](const std::string& kernel) { return has_kernels && takes_quantized(kernel); });
    call.args.k = ts::view(g_bytes, ts::f32, {kBatch, kSeqlenKv, kHeadsKv, kDim});
    call.args.k_scale = {};
    const std::string message = unsupported(call);
    if (!has_kernels) {
      EXPECT_EQ(message,
                "forward: v.dtype is f8e5m2 beside q.dtype f32, and no forward kernel on the CPU computes that, "
                "expected f32, i8, i4 or f8e4m3fn");
      continue;
    }
    // Kernels with one reason stand together.
    EXPECT_NE(message.find(std::string("reference.attention: takes k and v of one dtype, and k.dtype is f32 and "
                                       "v.dtype ") +
                           dtype.name),
              std::string::npos)
        << message;
    const std::string other = std::string(": does not compute v.dtype ") + dtype.name + " beside q.dtype f32";
    EXPECT_NE(message.find("cpu.forward_baseline" + other), std::string::npos) << message;
    EXPECT_EQ(message.find(other), message.rfind(other)) << message;
  }
  SmallCall call;
  call.args.k = ts::view(g_bytes, ts::u8, {kBatch, kSeqlenKv, kHeadsKv, kDim});
  EXPECT_EQ(invalid(call), "forward: k.dtype is u8, expected f32 = q.dtype, or f8e4m3fn, i8 or i4");
}

TEST(Operands, APlanAsksForTheDtypesItWasMadeFor) {
  SmallCall call;
  const ts::Plan plan = ts::plan_forward(call.args, call.options);
  call.args.v = ts::view(g_bytes, ts::bf16, {kBatch, kSeqlenKv, kHeadsKv, kDim});
  try {
    plan.run(call.args);
    FAIL();
  } catch (const ts::Error& error) {
    EXPECT_STREQ(error.what(), "plan_run: v.dtype is bf16, expected f32, what the plan was made for");
  }
}

TEST(Operands, OfFourBitsBeginAtWholeBytes) {
  SmallCall call;
  set_dtype(call, ts::i4);
  call.args.q = ts::view(g_bytes, ts::i4, {kBatch, kSeqlenQ, kHeadsQ, 7}, {84, 28, 7, 1});
  EXPECT_EQ(invalid(call), "forward: q.strides[2] is 7, expected an even one for i4, which has two elements a byte");
  // Padded rows, and an odd address: a byte is a byte.
  call.args.q = ts::view(g_bytes + 1, ts::i4, {kBatch, kSeqlenQ, kHeadsQ, 7}, {96, 32, 8, 1});
  call.args.k = ts::view(g_bytes, ts::i4, {kBatch, kSeqlenKv, kHeadsKv, 7}, {80, 16, 8, 1});
  EXPECT_NE(unsupported(call), "");
}

// Rows of odd head dims are padded to whole bytes; a kernel takes them rightly or not at all.
TEST(Operands, OfFourBitsMayHaveOddHeadDims) {
  constexpr int64_t kOdd = 33;
  static constexpr float kOne = 1;
  std::vector<float> q(kOdd), out(kOdd), expected(kOdd);
  std::vector<uint8_t> k(20 * (kOdd + 1) / 2), v(k.size());
  for (size_t i = 0; i < q.size(); ++i) q[i] = 0.1F * static_cast<float>(i % 7) - 0.3F;
  for (size_t i = 0; i < k.size(); ++i) {
    k[i] = static_cast<uint8_t>(i * 37 + 11);
    v[i] = static_cast<uint8_t>(i * 91 + 5);
  }
  const auto rows = [&](std::vector<uint8_t>& of) {
    return ts::view(of.data(), ts::i4, {1, 20, 1, kOdd}, {20 * (kOdd + 1), kOdd + 1, kOdd + 1, 1});
  };
  const auto run = [&](std::vector<float>& to, const std::string& kernel) {
    ts::forward({.q = ts::view(q.data(), ts::f32, {1, 1, 1, kOdd}),
                 .k = rows(k),
                 .v = rows(v),
                 .out = ts::view(to.data(), ts::f32, {1, 1, 1, kOdd}),
                 .k_scale = ts::view(&kOne, ts::f32, {1}),
                 .v_scale = ts::view(&kOne, ts::f32, {1})},
                {.kernel = kernel});
  };
  run(expected, "reference.attention");
  for (int32_t idx = 0; idx < tessella_kernel_count(); ++idx) {
    tessella_kernel_info info = TESSELLA_KERNEL_INFO_INIT;
    if (tessella_kernel_describe(idx, &info) != TESSELLA_OK || !takes_quantized(info.name)) continue;
    try {
      run(out, info.name);
    } catch (const ts::Error& error) {
      EXPECT_EQ(error.code(), ts::ErrorCode::unsupported) << error.what();
      continue;
    }
    for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], expected[i], 1e-4) << info.name;
  }
}

TEST(Operands, OutOfEightBitsIsWrittenByFewKernels) {
  SmallCall call;
  call.args.out = ts::view(call.out.data(), ts::f8e5m2, {kBatch, kSeqlenQ, kHeadsQ, kDim});
  expect_reason(call, "does not write out.dtype f8e5m2 beside q.dtype f32", takes_float8);
  call.args.out = ts::view(call.out.data(), ts::i8, {kBatch, kSeqlenQ, kHeadsQ, kDim});
  EXPECT_EQ(invalid(call), "forward: out.dtype is i8, expected f32 = q.dtype");
  set_dtype(call, ts::i8);
  call.args.out = ts::view(call.out.data(), ts::i32, {kBatch, kSeqlenQ, kHeadsQ, kDim});
  EXPECT_EQ(invalid(call), "forward: out.dtype is i32, expected i8 = q.dtype, or bf16, f16 or f32");
}

// A slot of factors, what it covers, and one shape that fits.
struct Scale {
  const char* name;
  ts::TensorView ts::ForwardArgs::*slot;
  int64_t blocks, heads;  // beside scale_block 2
};
constexpr Scale kScales[] = {{"q_scale", &ts::ForwardArgs::q_scale, 2, kHeadsQ},
                             {"k_scale", &ts::ForwardArgs::k_scale, 3, kHeadsKv},
                             {"v_scale", &ts::ForwardArgs::v_scale, 3, kHeadsKv},
                             {"out_scale", &ts::ForwardArgs::out_scale, 2, kHeadsQ},
                             {"amax", &ts::ForwardArgs::amax, 2, kHeadsQ}};

// With all of fp8.
void expect_taken(SmallCall& call) {
  set_dtype(call, ts::f8e4m3fn);
  call.args.out = ts::view(call.out.data(), ts::f8e4m3fn, {kBatch, kSeqlenQ, kHeadsQ, kDim});
  EXPECT_NO_THROW(ts::plan_forward(call.args, call.options));
  expect_reason(call, "does not compute f8e4m3fn", takes_float8);
}

// With k and v of 8 bits, by the reference at least.
void expect_taken(SmallCall& call, int64_t batch, int64_t rows) {
  call.args.k = ts::view(g_bytes, ts::i8, {batch, rows, kHeadsKv, kDim});
  call.args.v = ts::view(g_bytes, ts::i8, {batch, rows, kHeadsKv, kDim});
  for (ts::TensorView ts::ForwardArgs::*slot : {&ts::ForwardArgs::k_scale, &ts::ForwardArgs::v_scale}) {
    if (!(call.args.*slot).is_present()) call.args.*slot = factors({1});
  }
  call.options.kernel = "reference.attention";
  EXPECT_NO_THROW(ts::plan_forward(call.args, call.options));
  call.options.kernel = "";
}

// v as quantize writes it for Hopper.
TEST(Operands, TransposedV) {
  SmallCall call;
  set_dtype(call, ts::f8e4m3fn);
  const auto transposed = [](ts::DType dtype, int64_t dim, int64_t padded) {
    return ts::view_transposed(static_cast<const void*>(g_bytes), dtype, {kBatch, kHeadsKv, dim, padded});
  };
  call.args.v = transposed(ts::f8e4m3fn, kDim, 128);
  expect_reason(call, "does not compute f8e4m3fn", takes_float8);
  call.args.v = transposed(ts::f8e4m3fn, kDim, 64);
  EXPECT_EQ(invalid(call).find("forward: v has shape ("), 0U);
  call.args.v = transposed(ts::f32, kDim, 128);
  EXPECT_EQ(invalid(call), "forward: v.dtype is f32, expected f8e4m3fn or f8e5m2 of a transposed v");
  call.args.v = transposed(ts::f8e4m3fn, kDim + 1, 128);
  EXPECT_EQ(invalid(call).find("forward: out.shape[3] is "), 0U);
  call.args.v = ts::view_transposed(static_cast<const void*>(g_bytes), ts::f8e4m3fn, {kHeadsKv, kDim, 128});
  EXPECT_EQ(invalid(call),
            "forward: v has 3 axes, expected (batch, heads, head_dim, seqlen in whole tiles of 128) of a transposed v");
  call.args.v = transposed(ts::f8e4m3fn, kDim, 128);
  call.args.cache_batch_idx = ts::view(g_factors, ts::i32, {kBatch});
  EXPECT_EQ(invalid(call), "forward: v is transposed, expected no such layout beside cache_batch_idx");
  call.args.cache_batch_idx = {};
  call.args.k = call.args.v;
  EXPECT_EQ(invalid(call),
            "forward: k has the flag TESSELLA_TRANSPOSED, expected it only for what quantize writes, "
            "dequantize reads, and attention reads as v");
}

TEST(Scales, BroadcastByOneRule) {
  for (const Scale& scale : kScales) {
    const int64_t blocks = scale.blocks, heads = scale.heads;
    const bool is_of_keys = scale.name[0] == 'k' || scale.name[0] == 'v';
    const auto expect_fits = [&](SmallCall& call) {
      if (is_of_keys) return expect_taken(call, kBatch, kSeqlenKv);
      expect_taken(call);
    };
    for (const ts::TensorView& fits :
         {factors({kBatch, blocks, heads}), factors({1, blocks, heads}), factors({kBatch, 1, heads}),
          factors({kBatch, blocks, 1}), factors({blocks, heads}), factors({heads}), factors({1})}) {
      SmallCall call;
      call.options.scale_block = 2;
      call.args.*scale.slot = fits;
      expect_fits(call);
    }
    SmallCall call;
    call.options.scale_block = 2;
    call.args.*scale.slot = factors({kBatch, blocks + 1, heads});
    EXPECT_EQ(invalid(call), std::string("forward: ") + scale.name + " has shape (2, " + std::to_string(blocks + 1) +
                                 ", " + std::to_string(heads) + "), expected one that broadcasts to (2, " +
                                 std::to_string(blocks) + ", " + std::to_string(heads) + ") = (batch, blocks, heads)");
    call.args.*scale.slot = ts::view(g_factors, ts::i32, {1});
    EXPECT_EQ(invalid(call), std::string("forward: ") + scale.name + ".dtype is i32, expected f32");
    // Without blocks all rows have one entry.
    call.options.scale_block = 0;
    call.args.*scale.slot = factors({kBatch, 1, heads});
    expect_fits(call);
    call.args.*scale.slot = factors({kBatch, blocks, heads});
    EXPECT_NE(invalid(call), "");
    call = {};
    call.args.*scale.slot = factors({1});
    const bool is_of_out = scale.slot == &ts::ForwardArgs::out_scale;
    if (is_of_out) {
      EXPECT_EQ(invalid(call), "forward: out_scale is given and out.dtype is f32, expected f8e4m3fn or f8e5m2");
    }
    if (is_of_out || scale.slot == &ts::ForwardArgs::amax) continue;
    EXPECT_EQ(invalid(call), std::string("forward: ") + scale.name + " is given and " + scale.name[0] +
                                 ".dtype is f32, expected a dtype of 8 or 4 bits");
  }
}

// Beside q of other dtypes they are no matter of taste: a cache whose scales are forgotten is not what it holds.
TEST(Scales, OfCachesAreRequired) {
  for (const ts::DType dtype : {ts::i8, ts::f8e4m3fn}) {
    SmallCall call;
    call.args.k = ts::view(g_bytes, dtype, {kBatch, kSeqlenKv, kHeadsKv, kDim});
    call.args.v = ts::view(g_bytes, dtype, {kBatch, kSeqlenKv, kHeadsKv, kDim});
    const std::string rest = std::string(", whose dtype is ") + (dtype == ts::i8 ? "i8" : "f8e4m3fn") +
                             " (where it has none, one scale of 1)";
    EXPECT_EQ(invalid(call), "forward: k_scale is NULL, expected the scales of k" + rest);
    call.args.k_scale = factors({1});
    EXPECT_EQ(invalid(call), "forward: v_scale is NULL, expected the scales of v" + rest);
    call.args.v_scale = factors({1});
    EXPECT_NO_THROW(ts::plan_forward(call.args, call.options));
  }
}

TEST(Scales, OfPagesArePages) {
  static const int32_t pages[] = {0, 2, 1, 0};
  SmallCall call;
  call.args.k = ts::view(call.k.data(), ts::f32, {3, 2, kHeadsKv, kDim});
  call.args.v = ts::view(call.v.data(), ts::f32, {3, 2, kHeadsKv, kDim});
  call.args.page_table = ts::view(pages, ts::i32, {kBatch, 2});
  call.args.k_scale = factors({3, 1, kHeadsKv});
  expect_taken(call, 3, 2);
  call.options.scale_block = 1;
  call.args.k_scale = factors({3, 2, kHeadsKv});
  expect_taken(call, 3, 2);
  call.args.k_scale = factors({kBatch, 2, kHeadsKv});
  EXPECT_EQ(invalid(call),
            "forward: k_scale has shape (2, 2, 2), expected one that broadcasts to (3, 2, 2) = (batch, blocks, heads)");
}

TEST(Scales, OfPackedRowsAreOfSequencesOrOfBlocks) {
  static const int32_t cu[] = {0, 1, 3};
  SmallCall call;
  set_dtype(call, ts::f8e4m3fn);
  call.args.q = ts::view(g_bytes, ts::f8e4m3fn, {3, kHeadsQ, kDim});
  call.args.out = ts::view(call.out.data(), ts::f32, {3, kHeadsQ, kDim});
  call.args.lse = {};
  call.args.cu_seqlens_q = ts::view(cu, ts::i32, {3});
  call.args.q_scale = factors({2, 1, kHeadsQ});
  expect_reason(call, "does not compute f8e4m3fn", takes_float8);
  call.options.scale_block = 2;
  call.args.q_scale = factors({1, 2, kHeadsQ});
  expect_reason(call, "does not compute f8e4m3fn", takes_float8);
  call.args.q_scale = factors({2, 2, kHeadsQ});
  EXPECT_NE(invalid(call), "");
}

TEST(Scales, AreHeldAgainstTheRest) {
  SmallCall call;
  call.options.scale_block = 2;
  EXPECT_EQ(invalid(call),
            "forward: scale_block is 2, expected 0 without q_scale, k_scale, v_scale, out_scale and amax");
  call.options.scale_block = -1;
  EXPECT_EQ(invalid(call), "forward: scale_block is -1, expected at least 0 (all rows)");
  call.options.scale_block = 0;
  call.args.amax = ts::view(call.out.data(), ts::f32, {1});
  EXPECT_EQ(invalid(call), "forward: amax overlaps out, expected memory of its own");
  set_dtype(call, ts::f8e4m3fn);
  call.args.q_scale = factors({1});
  call.args.amax = factors({1});
  EXPECT_EQ(invalid(call), "forward: amax overlaps q_scale, expected memory of its own");
  call.args.amax = ts::view(static_cast<const void*>(g_factors), ts::f32, {1});
  EXPECT_EQ(invalid(call), "forward: amax is read-only, expected memory that may be written");
  static float entries[kHeadsQ];
  call.args.amax = ts::view(entries, ts::f32, {1, kHeadsQ}, {1, 0});
  EXPECT_NO_THROW(ts::forward(call.args, call.options));  // an axis of stride 0 is one that broadcasts
  call.args.amax = {};
  call.args.q_scale = ts::view(call.out.data(), ts::f32, {1});
  EXPECT_EQ(invalid(call), "forward: out overlaps q_scale, expected memory of its own");
}

bool is_reference(const std::string& kernel) { return kernel.rfind("cpu.", 0) != 0; }

TEST(Slices, AreForTheReferenceAlone) {
  for (int64_t ts::AttentionOptions::*first :
       {&ts::AttentionOptions::first_batch, &ts::AttentionOptions::first_query, &ts::AttentionOptions::first_key}) {
    SmallCall call;
    call.options.*first = 3;
    expect_reason(call, "does not support slice", is_reference);
    EXPECT_NE(unsupported(call).find("does not support slice"), std::string::npos);
    call.options.*first = -1;
    EXPECT_NE(invalid(call).find(" is -1, expected 0 to 1099511627776"), std::string::npos);
  }
  SmallCall call;
  call.options.first_head = 2;
  EXPECT_EQ(invalid(call), "forward: whole_heads_q is 0, expected 6 = first_head + the heads of q, to 1099511627776");
  call.options.whole_heads_q = 5;
  EXPECT_NE(invalid(call), "");
  call.options.whole_heads_q = 6;
  expect_reason(call, "does not support slice", is_reference);
  call.options.first_head = 0;
  expect_reason(call, "does not support slice", is_reference);
  call.options.whole_heads_q = kHeadsQ;
  EXPECT_EQ(unsupported(call), "");
}

// The reference's slices have the bits of the whole: heads, sequences, queries, with dropout and ALiBi.
TEST(Slices, TogetherAreTheWhole) {
  constexpr int64_t kRows = 40;
  constexpr int64_t kSize = kBatch * kRows * kHeadsQ * kDim;
  std::vector<float> q(kSize), k(kSize), v(kSize), whole(kSize), part(kSize, -1.0f);
  std::vector<float> slopes(kHeadsQ);
  for (size_t i = 0; i < q.size(); ++i) {
    q[i] = static_cast<float>(i % 13) / 8 - 0.75f;
    k[i] = static_cast<float>(i % 7) / 4 - 0.75f;
    v[i] = static_cast<float>(i % 31) / 16 - 1;
  }
  for (size_t i = 0; i < slopes.size(); ++i) slopes[i] = 0.0625f * static_cast<float>(i + 1);
  // batch, heads and queries of a slice of the tensors.
  const auto run = [&](std::vector<float>& out, int64_t batch, int64_t batches, int64_t head, int64_t heads,
                       int64_t query, int64_t queries) {
    const int64_t head_stride = kDim, row = kHeadsQ * kDim, sequence = kRows * row;
    const auto at = [&](std::vector<float>& values, int64_t first, int64_t rows) {
      return ts::view(values.data() + batch * sequence + first * row + head * head_stride, ts::f32,
                      {batches, rows, heads, kDim}, {sequence, row, head_stride, 1});
    };
    ts::AttentionOptions options{.dropout = 0.3f, .seed = 11, .kernel = "reference.attention"};
    options.first_batch = batch;
    options.first_head = head;
    options.whole_heads_q = kHeadsQ;
    options.first_query = query;
    ts::forward({.q = at(q, query, queries),
                 .k = at(k, 0, kRows),
                 .v = at(v, 0, kRows),
                 .out = at(out, query, queries),
                 .alibi_slopes = ts::view(slopes.data() + head, ts::f32, {heads})},
                options);
  };
  run(whole, 0, kBatch, 0, kHeadsQ, 0, kRows);
  for (int64_t b = 0; b < kBatch; ++b) run(part, b, 1, 0, kHeadsQ, 0, kRows);
  EXPECT_EQ(part, whole);
  std::fill(part.begin(), part.end(), -1.0f);
  for (int64_t h = 0; h < kHeadsQ; h += 2) run(part, 0, kBatch, h, 2, 0, kRows);
  EXPECT_EQ(part, whole);
  // Rows from the second on; those of the first slice are not said to be one, and ALiBi would align them at the end.
  std::vector<float> rest = whole;
  std::fill(rest.begin(), rest.end(), 0.0f);
  run(rest, 0, kBatch, 0, kHeadsQ, 17, kRows - 17);
  for (int64_t b = 0; b < kBatch; ++b) {
    const auto begin = (b * kRows + 17) * kHeadsQ * kDim, end = (b + 1) * kRows * kHeadsQ * kDim;
    EXPECT_TRUE(std::equal(whole.begin() + begin, whole.begin() + end, rest.begin() + begin));
  }
}

TEST(QueryClass, IsAskedForBesideBatchInvariant) {
  SmallCall call;
  call.options.query_class = ts::QueryClass::many;
  EXPECT_EQ(invalid(call), "forward: query_class is many, expected automatic unless batch_invariant is set");
  call.options.query_class = static_cast<ts::QueryClass>(3);
  EXPECT_EQ(invalid(call), "forward: query_class is 3, expected 0 (automatic), 1 (few) or 2 (many)");
  call.options.batch_invariant = true;
  call.options.query_class = ts::QueryClass::many;
  EXPECT_EQ(unsupported(call), "");
  call.options.query_class = ts::QueryClass::few;
  expect_reason(call, "is for many queries, and query_class is few",
                [](const std::string& kernel) { return takes_float8(kernel) || kernel.starts_with("cpu.decode_"); });
  call.options.kernel = "reference.attention";
  EXPECT_EQ(unsupported(call), "");
}

TEST(QueryClass, LeavesNoFreeSplits) {
  SmallCall call;
  call.options.batch_invariant = true;
  call.options.num_splits = 4;
  EXPECT_EQ(invalid(call),
            "forward: num_splits is 4, expected 0 or 1 beside batch_invariant, which splits keys at multiples of a "
            "constant");
  call.options.num_splits = 1;
  EXPECT_EQ(unsupported(call), "");
}

// The ladder computes f32 and no f64.
TEST(Costs, AreOfDtypesThatTheKernelComputes) {
  SmallCall in_f32, in_f64;
  std::vector<double> inputs(kBatch * kSeqlenKv * kHeadsQ * kDim), out(inputs.size());
  in_f64.args.q = ts::view(inputs.data(), ts::f64, {kBatch, kSeqlenQ, kHeadsQ, kDim});
  in_f64.args.k = in_f64.args.v = ts::view(inputs.data(), ts::f64, {kBatch, kSeqlenKv, kHeadsKv, kDim});
  in_f64.args.out = ts::view(out.data(), ts::f64, {kBatch, kSeqlenQ, kHeadsQ, kDim});
  const ts::detail::ForwardCall of_f32(in_f32.args, in_f32.options), of_f64(in_f64.args, in_f64.options);
  int num_counted = 0;
  for (int32_t idx = 0; idx < tessella_kernel_count(); ++idx) {
    tessella_kernel_info info = TESSELLA_KERNEL_INFO_INIT;
    ASSERT_EQ(tessella_kernel_describe(idx, &info), TESSELLA_OK);
    tessella_kernel_cost cost = TESSELLA_KERNEL_COST_INIT;
    if (tessella_kernel_cost_of(idx, &of_f32.tagged, &cost) != TESSELLA_OK) continue;
    ++num_counted;
    EXPECT_EQ(tessella_kernel_cost_of(idx, &of_f64.tagged, &cost), TESSELLA_UNSUPPORTED) << info.name;
    EXPECT_EQ(tessella_last_error(), std::string("kernel_cost_of: ") + info.name + " does not compute f64");
  }
  EXPECT_GT(num_counted, 0);
}

TEST(Operations, WithoutKernelsAreErrors) {
  SmallCall call;
  const ts::detail::ForwardCall c(call.args, call.options);
  tessella_call tagged = c.tagged;
  tessella_plan* plan = nullptr;
  tessella_check_report report = TESSELLA_CHECK_REPORT_INIT;
  tessella_kernel_cost cost = TESSELLA_KERNEL_COST_INIT;
  const char* reason = nullptr;
  const auto expect = [&](tessella_status status, const std::string& message) {
    EXPECT_EQ(tessella_plan_make(&tagged, &plan), status);
    EXPECT_EQ(tessella_last_error(), "plan_make: " + message);
    EXPECT_EQ(tessella_check(&tagged, 0, 0, &report), status);
    EXPECT_EQ(tessella_last_error(), "check: " + message);
    EXPECT_EQ(tessella_kernel_refusal(0, &tagged, &reason), status);
    EXPECT_EQ(tessella_last_error(), "kernel_refusal: " + message);
    EXPECT_EQ(tessella_kernel_cost_of(0, &tagged, &cost), status);
    EXPECT_EQ(tessella_last_error(), "kernel_cost_of: " + message);
  };
  tagged.operation = 0;
  expect(TESSELLA_UNSUPPORTED, "operation is 0, expected one of tessella_operation, 1 to 8");
  tagged.operation = TESSELLA_FORWARD;
  tagged.args = nullptr;
  EXPECT_EQ(tessella_plan_make(&tagged, &plan), TESSELLA_INVALID_ARGUMENT);
  EXPECT_STREQ(tessella_last_error(), "plan_make: args is NULL, expected a pointer");
  EXPECT_EQ(tessella_plan_make(nullptr, &plan), TESSELLA_INVALID_ARGUMENT);
  EXPECT_STREQ(tessella_last_error(), "plan_make: call is NULL, expected a pointer");
  tagged.struct_size = 0;
  EXPECT_EQ(tessella_plan_make(&tagged, &plan), TESSELLA_INVALID_ARGUMENT);
  EXPECT_STREQ(tessella_last_error(),
               "plan_make: call->struct_size is 0, expected sizeof of the struct (use its _INIT)");
}

}  // namespace
