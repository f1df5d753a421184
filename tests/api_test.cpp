// The door: every precondition gives its code and a sentence with function, argument, got and expected,
// and a call that fails writes nothing.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpu_kernels.hpp"
#include "gpu_twin.hpp"
#include "tessella/attention.hpp"

namespace ts = tessella;

namespace {

constexpr int64_t kBatch = 2, kSeqlenQ = 3, kSeqlenKv = 5, kHeadsQ = 4, kHeadsKv = 2, kDim = 8;

// A small valid call whose parts a test may spoil.
struct Call {
  std::vector<float> q = std::vector<float>(kBatch * kSeqlenQ * kHeadsQ * kDim, 0.5f);
  std::vector<float> k = std::vector<float>(kBatch * kSeqlenKv * kHeadsKv * kDim, 0.25f);
  std::vector<float> v = std::vector<float>(kBatch * kSeqlenKv * kHeadsKv * kDim, 2.0f);
  std::vector<float> out = std::vector<float>(kBatch * kSeqlenQ * kHeadsQ * kDim, -7.0f);
  std::vector<float> lse = std::vector<float>(kBatch * kHeadsQ * kSeqlenQ, -7.0f);
  ts::ForwardArgs args{.q = ts::view(q.data(), ts::f32, {kBatch, kSeqlenQ, kHeadsQ, kDim}),
                       .k = ts::view(k.data(), ts::f32, {kBatch, kSeqlenKv, kHeadsKv, kDim}),
                       .v = ts::view(v.data(), ts::f32, {kBatch, kSeqlenKv, kHeadsKv, kDim}),
                       .out = ts::view(out.data(), ts::f32, {kBatch, kSeqlenQ, kHeadsQ, kDim}),
                       .lse = ts::view(lse.data(), ts::f32, {kBatch, kHeadsQ, kSeqlenQ})};
  ts::AttentionOptions options;
};

struct Refusal {
  const char* name;
  std::function<void(Call&)> spoil;
  ts::ErrorCode code;
  const char* text;  // part of the message
};

using tessella::tests::gpu_problem;

constexpr auto kInvalid = ts::ErrorCode::invalid_argument;
constexpr auto kUnsupported = ts::ErrorCode::unsupported;

// Values that a spoiled call points to.
int32_t g_numbers[] = {0, 2, 4, 6, -1, 9};
float g_floats[64] = {};
uint8_t g_bools[64] = {};

ts::TensorView ints(int first, int64_t count) { return ts::view(g_numbers + first, ts::i32, {count}); }

tessella_tensor changed(const ts::TensorView& view, const std::function<void(tessella_tensor&)>& change) {
  tessella_tensor tensor = view.c_tensor();
  change(tensor);
  return tensor;
}

const Refusal kRefusals[] = {
    {"q_absent", [](Call& c) { c.args.q = {}; }, kInvalid, "forward: q is NULL, expected a tensor"},
    {"out_absent", [](Call& c) { c.args.out = {}; }, kInvalid, "out is NULL"},
    {"k_head_dim",
     [](Call& c) {
       c.args.k = ts::view(c.k.data(), ts::f32, {kBatch, kSeqlenKv, kHeadsKv, 4});
     },
     kInvalid, "forward: k.shape[3] is 4, expected 8 = q.shape[-1] (layout batch, seqlen, heads, head_dim)"},
    {"k_batch",
     [](Call& c) {
       c.args.k = ts::view(c.k.data(), ts::f32, {1, kSeqlenKv, kHeadsKv, kDim});
     },
     kInvalid, "k.shape[0] is 1, expected 2"},
    {"v_rows",
     [](Call& c) {
       c.args.v = ts::view(c.v.data(), ts::f32, {kBatch, 4, kHeadsKv, kDim});
     },
     kInvalid, "v.shape[1] is 4, expected 5"},
    {"v_heads",
     [](Call& c) {
       c.args.v = ts::view(c.v.data(), ts::f32, {kBatch, kSeqlenKv, 1, kDim});
     },
     kInvalid, "v.shape[2] is 1, expected 2"},
    {"heads_do_not_divide",
     [](Call& c) {
       c.args.k = ts::view(c.k.data(), ts::f32, {kBatch, 2, 3, kDim});
       c.args.v = ts::view(c.v.data(), ts::f32, {kBatch, 2, 3, kDim});
     },
     kInvalid, "q has 4 heads and k has 3, expected heads of q to be a multiple"},
    {"swapped_axes_are_named",
     [](Call& c) {
       c.args.q = ts::view(c.q.data(), ts::f32, {kBatch, kHeadsQ, kSeqlenQ, kDim});
       c.args.k = ts::view(c.k.data(), ts::f32, {kBatch, kHeadsKv, kSeqlenKv, kDim});
     },
     kInvalid, ""},
    {"out_head_dim",
     [](Call& c) {
       c.args.out = ts::view(c.out.data(), ts::f32, {kBatch, kSeqlenQ, kHeadsQ, 4});
     },
     kInvalid, "out.shape[3] is 4, expected 8"},
    {"out_dtype",
     [](Call& c) {
       c.args.out = ts::view(c.out.data(), ts::bf16, {kBatch, kSeqlenQ, kHeadsQ, kDim});
     },
     kInvalid, "out.dtype is bf16, expected f32"},
    {"k_dtype",
     [](Call& c) {
       c.args.k = ts::view(c.k.data(), ts::bf16, {kBatch, kSeqlenKv, kHeadsKv, kDim});
     },
     kInvalid, "k.dtype is bf16, expected f32 = q.dtype"},
    {"q_dtype",
     [](Call& c) {
       c.args.q = ts::view(c.q.data(), ts::i32, {kBatch, kSeqlenQ, kHeadsQ, kDim});
     },
     kInvalid, "q.dtype is i32, expected f64, f32, bf16 or f16"},
    {"option_out_dtype", [](Call& c) { c.options.out_dtype = ts::bf16; }, kInvalid,
     "out_dtype is bf16, expected f32 = q.dtype"},
    {"option_out_dtype_unknown", [](Call& c) { c.options.out_dtype = static_cast<ts::DType>(9); }, kInvalid,
     "out_dtype is 9, expected one of tessella_dtype"},
    {"negative_stride",
     [](Call& c) { c.args.q = ts::TensorView(changed(c.args.q, [](tessella_tensor& t) { t.strides[1] = -32; })); },
     kInvalid, "q.strides[1] is -32, expected at least 0"},
    {"head_dim_stride",
     [](Call& c) {
       c.args.q = ts::view(c.q.data(), ts::f32, {kBatch, kSeqlenQ, kHeadsQ, 2}, {96, 32, 8, 2});
     },
     kInvalid, "q.strides[3] is 2, expected 1: head_dim must be contiguous"},
    {"ndim",
     [](Call& c) {
       c.args.q = ts::view(c.q.data(), ts::f32, {1, 1, 3, 4, 8});
     },
     kInvalid, "q has shape"},
    {"null_data",
     [](Call& c) {
       c.args.v = ts::view(static_cast<void*>(nullptr), ts::f32, {2, 5, 2, 8});
     },
     kInvalid, "v.data is NULL"},
    {"misaligned",
     [](Call& c) {
       c.args.k = ts::view(reinterpret_cast<char*>(c.k.data()) + 1, ts::f32, {kBatch, kSeqlenKv - 1, kHeadsKv, kDim});
     },
     kInvalid, "k.data is not aligned, expected a multiple of 4 bytes"},
    {"reserved",
     [](Call& c) { c.args.q = ts::TensorView(changed(c.args.q, [](tessella_tensor& t) { t.reserved[1] = 1; })); },
     kInvalid, "q.reserved is 1, expected zeros"},
    {"huge",
     [](Call& c) {
       c.args.q = ts::TensorView(changed(c.args.q, [](tessella_tensor& t) { t.shape[0] = int64_t{1} << 61; }));
     },
     kInvalid, "expected one whose bytes fit in 62 bits"},
    {"out_read_only",
     [](Call& c) {
       c.args.out = ts::view(static_cast<const void*>(c.out.data()), ts::f32, {kBatch, kSeqlenQ, kHeadsQ, kDim});
     },
     kInvalid, "out is read-only"},
    {"out_is_q",
     [](Call& c) {
       c.args.out = ts::view(c.q.data(), ts::f32, {kBatch, kSeqlenQ, kHeadsQ, kDim});
     },
     kInvalid, "out overlaps q, expected memory of its own"},
    {"out_in_v",
     [](Call& c) {
       c.args.v = ts::view(c.out.data() + 16, ts::f32, {kBatch, kSeqlenKv, kHeadsKv, kDim});
     },
     kInvalid, "out overlaps v"},
    {"out_folded",
     [](Call& c) {
       c.args.out = ts::view(c.out.data(), ts::f32, {kBatch, kSeqlenQ, kHeadsQ, kDim}, {96, 32, 0, 1});
     },
     kInvalid, "out has an axis of stride 0, expected at least 8 so that no two elements share memory"},
    {"out_over_bias",
     [](Call& c) {
       c.args.bias = ts::view(c.out.data(), ts::f32, {kSeqlenQ, kSeqlenKv});
     },
     kInvalid, "out overlaps bias"},
    {"sink_repeated", [](Call& c) { c.args.sink = ts::view(g_floats, ts::f32, {2}, {0}); }, kInvalid,
     "sink has shape (2)"},
    {"lse_in_out",
     [](Call& c) {
       c.args.lse = ts::view(c.out.data(), ts::f32, {kBatch, kHeadsQ, kSeqlenQ});
     },
     kInvalid, "lse overlaps out"},
    {"lse_shape",
     [](Call& c) {
       c.args.lse = ts::view(c.lse.data(), ts::f32, {kBatch, kSeqlenQ, kHeadsQ});
     },
     kInvalid, "lse has shape (2, 3, 4), expected (2, 4, 3) = (batch, heads_q, seqlen_q)"},
    {"lse_dtype",
     [](Call& c) {
       c.args.lse = ts::view(c.lse.data(), ts::bf16, {kBatch, kHeadsQ, kSeqlenQ});
     },
     kInvalid, "lse.dtype is bf16, expected f32"},
    {"scale", [](Call& c) { c.options.scale = INFINITY; }, kInvalid, "scale is inf, expected a finite number"},
    {"softcap", [](Call& c) { c.options.softcap = -1; }, kInvalid, "softcap is -1"},
    {"softcap_nan", [](Call& c) { c.options.softcap = NAN; }, kInvalid, "softcap is nan"},
    {"dropout_one", [](Call& c) { c.options.dropout = 1; }, kInvalid, "dropout is 1, expected a probability in [0, 1)"},
    {"window", [](Call& c) { c.options.mask = ts::Mask::window(-2, 0); }, kInvalid, "window_left is -2"},
    {"chunk", [](Call& c) { c.options.mask = ts::Mask::chunk(-3); }, kInvalid, "chunk is -3"},
    {"keep_first", [](Call& c) { c.options.mask = ts::Mask::keep_first(-1); }, kInvalid, "keep_first is -1"},
    {"num_threads", [](Call& c) { c.options.num_threads = -1; }, kInvalid, "num_threads is -1"},
    {"num_splits", [](Call& c) { c.options.num_splits = 4; }, kUnsupported, "num_splits is 4"},
    {"num_sms", [](Call& c) { c.options.num_sms = 4; }, kUnsupported, "option num_sms is for GPUs"},
    {"score", [](Call& c) { c.options.score = {"return score + 1;"}; }, kUnsupported, "option score is for GPUs"},
    {"keep", [](Call& c) { c.options.keep = "return q >= k;"; }, kUnsupported, "option keep is for GPUs"},
    {"max_seqlen", [](Call& c) { c.options.max_seqlen_kv = 4; }, kInvalid,
     "max_seqlen_kv is 4, expected 0 or at least 5"},
    {"unknown_kernel", [](Call& c) { c.options.kernel = "cpu.nonsense"; }, kInvalid, "kernel is \"cpu.nonsense\""},
    {"seqlens_count", [](Call& c) { c.args.seqlens_kv = ints(0, 3); }, kInvalid,
     "seqlens_kv has shape (3), expected (2) = (batch)"},
    {"seqlens_dtype", [](Call& c) { c.args.seqlens_kv = ts::view(g_floats, ts::f32, {2}); }, kInvalid,
     "seqlens_kv.dtype is f32, expected i32"},
    {"seqlens_negative", [](Call& c) { c.args.seqlens_kv = ints(4, 2); }, kInvalid, "seqlens_kv[0] is -1"},
    {"seqlens_beyond", [](Call& c) { c.args.seqlens_q = ints(2, 2); }, kInvalid, "seqlens_q[0] is 4, expected 0 to 3"},
    {"leftpad_beyond", [](Call& c) { c.args.leftpad_kv = ints(2, 2); }, kInvalid, "leftpad_kv[1] is 6"},
    {"page_table_shape", [](Call& c) { c.args.page_table = ints(0, 3); }, kInvalid,
     "page_table has shape (3), expected (2, 3) = (batch, pages)"},
    {"pages_flattened",
     [](Call& c) {
       c.args.page_table = ts::view(g_numbers, ts::i32, {2, 1});
       c.args.k = ts::view(c.k.data(), ts::f32, {10, 2, 8});
     },
     kInvalid, "k has 3 axes, expected (num_pages, page_size, heads_kv, head_dim) beside page_table"},
    {"page_beyond",
     [](Call& c) {
       c.args.page_table = ts::view(g_numbers, ts::i32, {2, 1});
     },
     kInvalid, "page_table[1][0] is 2, expected 0 to 1, the pages of k"},
    {"pages_packed",
     [](Call& c) {
       c.args.page_table = ts::view(g_numbers, ts::i32, {2, 1});
       c.args.cu_seqlens_kv = ints(0, 3);
     },
     kInvalid, "cu_seqlens_kv is given, expected it absent beside page_table"},
    {"cu_beyond",
     [](Call& c) {
       c.args.q = ts::view(c.q.data(), ts::f32, {4, kHeadsQ, kDim});
       c.args.out = ts::view(c.out.data(), ts::f32, {4, kHeadsQ, kDim});
       c.args.lse = {};
       static const int32_t cu[] = {0, 2, std::numeric_limits<int32_t>::max()};
       c.args.cu_seqlens_q = ts::view(cu, ts::i32, {3});
     },
     kInvalid, "cu_seqlens_q[2] is 2147483647, expected at most 4, the rows of the packed tensor"},
    {"batch_of_nothing",
     [](Call& c) {
       const int64_t many = int64_t{1} << 40;
       for (ts::TensorView* t : {&c.args.q, &c.args.k, &c.args.v, &c.args.out}) {
         *t = ts::TensorView(changed(*t, [&](tessella_tensor& tensor) {
           tensor.shape[0] = many;
           tensor.shape[1] = 0;
         }));
       }
       c.args.lse = {};
     },
     kUnsupported, "batch is 1099511627776, expected at most 2147483647"},
    {"cu_with_batch_axis", [](Call& c) { c.args.cu_seqlens_q = ints(0, 3); }, kInvalid, "q has shape (2, 3, 4, 8)"},
    {"prefix_negative", [](Call& c) { c.options.mask = ts::Mask::prefix(ints(4, 2)); }, kInvalid,
     "prefix_lengths[0] is -1"},
    {"bias_shape",
     [](Call& c) {
       c.args.bias = ts::view(g_floats, ts::f32, {3, 4});
     },
     kInvalid, "bias has shape (3, 4), expected one that broadcasts to (2, 4, 3, 5)"},
    {"bias_dtype",
     [](Call& c) {
       c.args.bias = ts::view(g_floats, ts::f16, {3, 5});
     },
     kInvalid, "bias.dtype is f16"},
    {"alibi_shape", [](Call& c) { c.args.alibi_slopes = ts::view(g_floats, ts::f32, {3}); }, kInvalid,
     "alibi_slopes has shape (3), expected (4) or (2, 4)"},
    {"sink_shape", [](Call& c) { c.args.sink = ts::view(g_floats, ts::f32, {2}); }, kInvalid, "sink has shape (2)"},
    {"dense_dtype",
     [](Call& c) {
       c.options.mask = ts::Mask::dense(ts::view(g_floats, ts::f32, {3, 5}));
     },
     kInvalid, "dense_mask.dtype is f32, expected bool"},
    {"block_map_size",
     [](Call& c) {
       c.options.mask = ts::Mask::block_map(ts::view(g_bools, ts::boolean, {1, 1}), 0, 2);
     },
     kInvalid, "block_map_q is 0"},
    {"block_map_shape",
     [](Call& c) {
       c.options.mask = ts::Mask::block_map(ts::view(g_bools, ts::boolean, {3, 3}), 2, 2);
     },
     kInvalid, "block_map has shape (3, 3), expected one that broadcasts to (2, 4, 2, 3)"},
    {"document_kv_absent",
     [](Call& c) {
       c.options.mask = ts::Mask::document(ts::view(g_numbers, ts::i32, {2, 3}));
     },
     kInvalid, "document_ids_kv is absent"},
};

class RefusalTest : public testing::TestWithParam<Refusal> {};

TEST_P(RefusalTest, HasItsCodeAndSentenceAndTouchesNothing) {
  Call call;
  GetParam().spoil(call);
  try {
    ts::forward(call.args, call.options);
    FAIL() << "accepted";
  } catch (const ts::Error& error) {
    EXPECT_EQ(error.code(), GetParam().code) << error.what();
    EXPECT_NE(std::string(error.what()).find(GetParam().text), std::string::npos) << error.what();
    EXPECT_EQ(std::string(error.what()).rfind("forward: ", 0), 0u) << error.what();
  }
  for (const float value : call.out) ASSERT_EQ(value, -7.0f);
  for (const float value : call.lse) ASSERT_EQ(value, -7.0f);
}

// The same call with tensors that are said to be on a GPU: it is refused before any of them is touched.
TEST_P(RefusalTest, IsTheSameForAGpu) {
  if (const std::string problem = gpu_problem(); !problem.empty()) GTEST_SKIP() << problem;
  const std::string_view name = GetParam().name;
  for (const char* other : {"num_sms", "score", "keep"}) {
    if (name == other) GTEST_SKIP() << "differs on a GPU";
  }
  for (const char* value :
       {"seqlens_negative", "seqlens_beyond", "leftpad_beyond", "page_beyond", "prefix_negative", "cu_beyond"}) {
    if (name == value) GTEST_SKIP() << "values on a GPU are not looked at";
  }
  Call call;
  GetParam().spoil(call);
  if (call.options.kernel.empty()) call.options.kernel = "cuda.nonsense";  // so that nothing can run
  const ts::detail::ForwardCall c(call.args, call.options);
  std::deque<tessella_tensor> tensors;
  const tessella_forward_args args = tessella::tests::said_to_be_on_gpu(c.args, tensors);
  EXPECT_EQ(tessella_forward(&args, &c.options, nullptr), static_cast<tessella_status>(GetParam().code));
  const std::string text = tessella_last_error();
  if (text.find("no CUDA backend") != std::string::npos) GTEST_SKIP() << text;
  EXPECT_NE(text.find(GetParam().text), std::string::npos) << text;
}

INSTANTIATE_TEST_SUITE_P(All, RefusalTest, testing::ValuesIn(kRefusals),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(Api, WithoutAGpuCudaTensorsAreRefusedWithTheReason) {
  if (gpu_problem().empty()) GTEST_SKIP() << "there is a GPU here";
  Call call;
  call.args.q = ts::TensorView(changed(call.args.q, [](tessella_tensor& t) { t.device_type = TESSELLA_CUDA; }));
  try {
    ts::forward(call.args);
    FAIL();
  } catch (const ts::Error& error) {
    EXPECT_EQ(error.code(), kUnsupported);
    EXPECT_EQ(std::string(error.what()).rfind("forward: q is on cuda:0, and ", 0), 0u) << error.what();
  }
}

TEST(Api, AValidCallRuns) {
  Call call;
  ts::forward(call.args, call.options);
  for (const float value : call.out) EXPECT_NEAR(value, 2.0f, 1e-5);  // all v are 2
  const float score = 0.5f * 0.25f * kDim / std::sqrt(static_cast<float>(kDim));
  for (const float value : call.lse) EXPECT_NEAR(value, score + std::log(5.0f), 1e-5);
}

TEST(Api, SwappedAxesAreGuessed) {
  std::vector<float> memory(2 * 64 * 4 * 8, 0.0f);
  std::vector<float> out(memory.size());
  const auto q = ts::view(memory.data(), ts::f32, {1, 4, 64, 8});  // heads and seqlen swapped
  const auto k = ts::view(memory.data(), ts::f32, {1, 2, 48, 8});
  try {
    ts::forward({.q = q, .k = k, .v = k, .out = ts::view(out.data(), ts::f32, {1, 4, 64, 8})});
    FAIL();
  } catch (const ts::Error& error) {
    EXPECT_NE(std::string(error.what()).find("with axes 1 and 2 swapped they would fit"), std::string::npos)
        << error.what();
  }
}

TEST(Api, NullStructsAreRefused) {
  EXPECT_EQ(tessella_forward(nullptr, nullptr, nullptr), TESSELLA_INVALID_ARGUMENT);
  EXPECT_STREQ(tessella_last_error(), "forward: args is NULL, expected a pointer");
  tessella_forward_args args{};
  EXPECT_EQ(tessella_forward(&args, nullptr, nullptr), TESSELLA_INVALID_ARGUMENT);
  EXPECT_NE(std::string(tessella_last_error()).find("struct_size is 0"), std::string::npos);
  EXPECT_EQ(tessella_plan_run(nullptr, nullptr, nullptr, nullptr, nullptr), TESSELLA_INVALID_ARGUMENT);
  tessella_plan_free(nullptr);
}

TEST(Api, ANewerStructThatSetsAnUnknownFieldIsRefused) {
  struct Newer {
    tessella_attention_options options = TESSELLA_ATTENTION_OPTIONS_INIT;
    int64_t unknown = 0;
  } newer;
  newer.options.struct_size = sizeof(Newer);
  Call call;
  const ts::detail::ForwardCall c(call.args, call.options);
  EXPECT_EQ(tessella_forward(&c.args, &newer.options, nullptr), TESSELLA_OK) << tessella_last_error();
  newer.unknown = 1;
  EXPECT_EQ(tessella_forward(&c.args, &newer.options, nullptr), TESSELLA_UNSUPPORTED);
  EXPECT_NE(std::string(tessella_last_error()).find("options sets a field at byte"), std::string::npos);
}

TEST(Api, SlicesOfOneBufferDoNotOverlap) {
  // (seqlen, 4, heads, dim): q, k, v and out side by side in every row
  constexpr int64_t kSeqlen = 6, kHeads = 2, kPlane = kHeads * kDim;
  std::vector<float> buffer(kSeqlen * 4 * kPlane, 1.0f);
  const auto slice = [&](int64_t idx) {
    return ts::view(buffer.data() + idx * kPlane, ts::f32, {1, kSeqlen, kHeads, kDim}, {0, 4 * kPlane, kDim, 1});
  };
  EXPECT_NO_THROW(ts::forward({.q = slice(0), .k = slice(1), .v = slice(2), .out = slice(3)}));
  EXPECT_THROW(ts::forward({.q = slice(0), .k = slice(1), .v = slice(2), .out = slice(2)}), ts::Error);
}

TEST(Api, ShapesWithoutBatchOrHeads) {
  std::vector<float> q(4 * 8, 1.0f), out2(4 * 8), out3(4 * 8), lse(4);
  const auto q2 = ts::view(q.data(), ts::f32, {4, 8});
  ts::forward({.q = q2,
               .k = q2,
               .v = q2,
               .out = ts::view(out2.data(), ts::f32, {4, 8}),
               .lse = ts::view(lse.data(), ts::f32, {4})});
  const auto q3 = ts::view(q.data(), ts::f32, {4, 1, 8});
  ts::forward({.q = q3, .k = q3, .v = q3, .out = ts::view(out3.data(), ts::f32, {4, 1, 8})});
  EXPECT_EQ(out2, out3);
}

TEST(Api, TheAllocatorOfTheCallerIsUsed) {
  struct Counts {
    size_t allocated = 0, freed = 0;
  } counts;
  const tessella_allocator allocator{[](size_t bytes, size_t alignment, void*, void* user) -> void* {
                                       static_cast<Counts*>(user)->allocated += bytes;
                                       return std::aligned_alloc(alignment,
                                                                 (bytes + alignment - 1) / alignment * alignment);
                                     },
                                     [](void* data, size_t bytes, void*, void* user) {
                                       static_cast<Counts*>(user)->freed += bytes;
                                       std::free(data);
                                     },
                                     &counts};
  Call call;
  call.options.allocator = &allocator;
  ts::forward(call.args, call.options);
  EXPECT_GT(counts.allocated, 0u);
  EXPECT_EQ(counts.allocated, counts.freed);

  const tessella_allocator broke{[](size_t, size_t, void*, void*) -> void* { return nullptr; },
                                 [](void*, size_t, void*, void*) {}, nullptr};
  call.options.allocator = &broke;
  try {
    ts::forward(call.args, call.options);
    FAIL();
  } catch (const ts::Error& error) {
    EXPECT_EQ(error.code(), ts::ErrorCode::out_of_memory);
  }
}

TEST(Api, BoundsOfAPlanAreLimited) {
  Call call;
  for (const int64_t bound : {INT64_MAX, int64_t{1} << 40, int64_t{1} << 31}) {
    call.options.max_seqlen_kv = bound;
    try {
      ts::plan_forward(call.args, call.options);
      FAIL() << bound;
    } catch (const ts::Error& error) {
      EXPECT_EQ(error.code(), kUnsupported) << error.what();
    }
  }
}

TEST(Api, APlanNeedsNoMemory) {
  Call call;
  const ts::Plan planned = ts::plan_forward(call.args, call.options);
  Call bare;
  for (ts::TensorView* t : {&bare.args.q, &bare.args.k, &bare.args.v, &bare.args.out, &bare.args.lse}) {
    *t = ts::TensorView(changed(*t, [](tessella_tensor& tensor) { tensor.data = nullptr; }));
  }
  const ts::Plan plan = ts::plan_forward(bare.args, bare.options);
  EXPECT_EQ(plan.explain(), planned.explain());
  plan.run(call.args, call.options, nullptr);
  Call plain;
  ts::forward(plain.args, plain.options);
  EXPECT_EQ(call.out, plain.out);
}

TEST(Api, ARunHasThePlansThreads) {
  Call call;
  call.options.num_threads = 1;
  const ts::Plan plan = ts::plan_forward(call.args, call.options);
  plan.run(call.args, call.options, nullptr);
  call.options.num_threads = 0;
  plan.run(call.args, call.options, nullptr);
  call.options.num_threads = 2;
  try {
    plan.run(call.args, call.options, nullptr);
    FAIL();
  } catch (const ts::Error& error) {
    EXPECT_STREQ(error.what(), "plan_run: num_threads is 2, expected 1, what the plan was made for");
  }
}

TEST(Api, WhatIsComparedMayBeReadOnly) {
  Call call;
  ts::forward(call.args, call.options);
  call.args.out = ts::view(std::as_const(call.out).data(), ts::f32, {kBatch, kSeqlenQ, kHeadsQ, kDim});
  EXPECT_EQ(ts::check_forward(call.args, call.options, 0, 0).passed, 1);
}

TEST(Api, AStrideOfZeroRepeatsAValue) {
  Call repeated, listed;
  float sink = 0.75f;
  std::vector<float> sinks(kHeadsQ, sink);
  repeated.args.sink = ts::view(&sink, ts::f32, {kHeadsQ}, {0});
  listed.args.sink = ts::view(sinks.data(), ts::f32, {kHeadsQ});
  ts::forward(repeated.args);
  ts::forward(listed.args);
  EXPECT_EQ(repeated.out, listed.out);
  EXPECT_EQ(repeated.lse, listed.lse);
}

TEST(Api, ACrookedAllocatorIsRefused) {
  Call call;
  static std::vector<char> memory(1 << 20);
  const tessella_allocator crooked{[](size_t, size_t, void*, void*) -> void* {
                                     return memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) + 16;
                                   },
                                   [](void*, size_t, void*, void*) {}, nullptr};
  call.options.allocator = &crooked;
  EXPECT_THROW(ts::forward(call.args, call.options), ts::Error);
  const tessella_allocator none{};
  call.options.allocator = &none;
  EXPECT_THROW(ts::forward(call.args, call.options), ts::Error);
}

TEST(Mask, PartsJoin) {
  tessella_attention_options spoiled = TESSELLA_ATTENTION_OPTIONS_INIT;
  (ts::Mask::chunk(-3) & ts::Mask::causal()).fill(spoiled);
  EXPECT_EQ(spoiled.chunk, -3);  // for the library to refuse
  EXPECT_THROW(ts::Mask::chunk(4) & ts::Mask::chunk(8), ts::Error);
  EXPECT_THROW(ts::Mask::document(ints(0, 2)) & ts::Mask::document(ints(0, 2)), ts::Error);
  tessella_attention_options options = TESSELLA_ATTENTION_OPTIONS_INIT;
  (ts::Mask::window(7, 3) & ts::Mask::causal() & ts::Mask::window(9, -1)).fill(options);
  EXPECT_EQ(options.window_left, 7);
  EXPECT_EQ(options.window_right, 0);
}

}  // namespace
