// Every precondition gives its code and a sentence with function, argument, got and expected, and a call that fails
// writes nothing. The errors themselves are in errors/, by subject.
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "api/errors/expected_error.hpp"
#include "cases/gpu_kernels.hpp"
#include "cases/gpu_twin.hpp"
#include "cases/small_call.hpp"
#include "tessella/attention.hpp"

namespace {

using namespace tessella::tests;

std::vector<ExpectedError> all_errors() {
  std::vector<ExpectedError> all;
  for (const auto errors : {tensor_errors(), length_errors(), mask_errors(), score_errors(), execution_errors()}) {
    all.insert(all.end(), errors.begin(), errors.end());
  }
  return all;
}

class ErrorsTest : public testing::TestWithParam<ExpectedError> {};

TEST_P(ErrorsTest, HasItsCodeAndSentenceAndTouchesNothing) {
  SmallCall call;
  GetParam().spoil(call);
  try {
    ts::forward(call.args, call.options);
    FAIL() << "accepted";
  } catch (const ts::Error& error) {
    EXPECT_EQ(error.code(), GetParam().code) << error.what();
    EXPECT_NE(std::string(error.what()).find(GetParam().message), std::string::npos) << error.what();
    EXPECT_EQ(std::string(error.what()).rfind("forward: ", 0), 0u) << error.what();
  }
  for (const float value : call.out) ASSERT_EQ(value, -7.0f);
  for (const float value : call.lse) ASSERT_EQ(value, -7.0f);
}

// The same call with tensors that are said to be on a GPU: it is an error before any of them is touched.
TEST_P(ErrorsTest, IsTheSameForAGpu) {
  if (const std::string problem = gpu_arguments(); !problem.empty()) GTEST_SKIP() << problem;
  const std::string_view name = GetParam().name;
  for (const char* other :
       {"num_sms", "num_splits", "schedule_on_the_cpu", "mask_map_on_the_cpu", "score_mod", "mask_mod"}) {
    if (name == other) GTEST_SKIP() << "differs on a GPU";
  }
  for (const char* value :
       {"seqlens_negative", "seqlens_beyond", "leftpad_beyond", "page_beyond", "page_seen", "page_negative",
        "slot_beyond", "slot_negative", "prefix_negative", "cu_beyond", "key_ranges_backwards", "key_ranges_negative",
        "key_ranges_unsorted", "key_ranges_overlap", "query_ranges_backwards"}) {
    if (name == value) GTEST_SKIP() << "values on a GPU are not read";
  }
  SmallCall call;
  GetParam().spoil(call);
  if (call.options.kernel.empty()) call.options.kernel = "cuda.nonsense";  // so that nothing can run
  const ts::detail::ForwardCall c(call.args, call.options);
  std::deque<tessella_tensor> tensors;
  const tessella_forward_args args = tessella::tests::said_to_be_on_gpu(c.args, tensors);
  EXPECT_EQ(tessella_forward(&args, &c.options, nullptr), static_cast<tessella_status>(GetParam().code));
  const std::string message = tessella_last_error();
  if (message.find("no CUDA backend") != std::string::npos) GTEST_SKIP() << message;
  EXPECT_NE(message.find(GetParam().message), std::string::npos) << message;
}

// (6, 10) would be the packed rows, and a GPU's lengths are not read: it has to be told the longest.
TEST(Packed, ScoreTensorsOnAGpuWantABoundOfLengths) {
  if (const std::string problem = gpu_arguments(); !problem.empty()) GTEST_SKIP() << problem;
  const auto error_of_call = [](const std::function<void(SmallCall&)>& change) {
    SmallCall call;
    pack(call);
    change(call);
    call.options.kernel = "cuda.nonsense";  // so that nothing can run
    const ts::detail::ForwardCall c(call.args, call.options);
    std::deque<tessella_tensor> tensors;
    const tessella_forward_args args = said_to_be_on_gpu(c.args, tensors);
    EXPECT_EQ(tessella_forward(&args, &c.options, nullptr), TESSELLA_INVALID_ARGUMENT);
    return std::string(tessella_last_error());
  };
  const std::string accepted = "kernel is \"cuda.nonsense\"";
  const std::string no_bound =
      "forward: max_seqlen_q is 0, expected the longest sequence beside cu_seqlens_q on a GPU: bias counts queries "
      "from "
      "the first of each sequence";
  EXPECT_EQ(error_of_call([](SmallCall& c) {
              c.options.max_seqlen_q = c.options.max_seqlen_kv = 0;
              c.args.bias = ts::view(g_floats, ts::f32, {6, 10});
            }),
            no_bound);
  EXPECT_NE(error_of_call([](SmallCall& c) {
              c.options.max_seqlen_kv = 0;
              c.args.bias = ts::view(g_floats, ts::f32, {4, 10});
            })
                .find("forward: max_seqlen_kv is 0, expected the longest sequence beside cu_seqlens_kv on a GPU: bias "
                      "counts keys"),
            std::string::npos);
  EXPECT_NE(error_of_call([](SmallCall& c) {
              c.options.max_seqlen_q = 0;  // no axis of queries
              c.args.bias = ts::view(g_floats, ts::f32, {1, 6});
            }).find(accepted),
            std::string::npos);
  EXPECT_NE(error_of_call([](SmallCall& c) {
              c.args.bias = ts::view(g_floats, ts::f32, {4, 6});
            }).find(accepted),
            std::string::npos);
}

// From the longest sequence up to the bound that the caller gives, in each sequence's own queries and keys.
TEST(Packed, ScoreTensorsCountFromTheFirstOfEachSequence) {
  const auto run = [](const std::function<void(SmallCall&)>& change) {
    SmallCall call;
    pack(call);
    for (size_t at = 0; at < call.v.size(); ++at) call.v[at] = static_cast<float>(at % 37);
    change(call);
    ts::forward(call.args, call.options);
    EXPECT_EQ(ts::check_forward(call.args, call.options, 0).passed, 1);
    return call.out;
  };
  std::vector<float> bias(5 * 7), cut;
  for (size_t at = 0; at < bias.size(); ++at) bias[at] = static_cast<float>(at % 5);
  for (size_t i = 0; i < 4; ++i) cut.insert(cut.end(), &bias[i * 7], &bias[i * 7 + 6]);
  const std::vector<float> expected = run([&](SmallCall& c) {
    c.options.max_seqlen_q = c.options.max_seqlen_kv = 0;
    c.args.bias = ts::view(cut.data(), ts::f32, {4, 6});
  });
  EXPECT_EQ(run([&](SmallCall& c) {
              c.options.max_seqlen_q = 5;
              c.options.max_seqlen_kv = 7;
              c.args.bias = ts::view(bias.data(), ts::f32, {5, 7});
            }),
            expected);
  // The second sequence, alone: its rows 4 and 5 of q, 6 to 9 of k and v, with the bias from its first entry.
  SmallCall alone;
  for (size_t at = 0; at < alone.v.size(); ++at) alone.v[at] = static_cast<float>(at % 37);
  alone.args.q = ts::view(alone.q.data() + 4 * kHeadsQ * kDim, ts::f32, {2, kHeadsQ, kDim});
  alone.args.k = ts::view(alone.k.data() + 6 * kHeadsKv * kDim, ts::f32, {4, kHeadsKv, kDim});
  alone.args.v = ts::view(alone.v.data() + 6 * kHeadsKv * kDim, ts::f32, {4, kHeadsKv, kDim});
  alone.args.out = ts::view(alone.out.data(), ts::f32, {2, kHeadsQ, kDim});
  alone.args.lse = {};
  alone.args.bias = ts::view(bias.data(), ts::f32, {2, 4}, {7, 1});
  ts::forward(alone.args, alone.options);
  for (int64_t at = 0; at < 2 * kHeadsQ * kDim; ++at) {
    EXPECT_NEAR(expected[static_cast<size_t>(4 * kHeadsQ * kDim + at)], alone.out[static_cast<size_t>(at)], 1e-5);
  }
  // Of the CPU, whose lengths are read, also without a bound.
  SmallCall rows;
  pack(rows);
  rows.options.max_seqlen_q = rows.options.max_seqlen_kv = 0;
  rows.args.bias = ts::view(g_floats, ts::f32, {6, 10});
  try {
    ts::forward(rows.args, rows.options);
    FAIL();
  } catch (const ts::Error& error) {
    EXPECT_STREQ(error.what(),
                 "forward: bias has shape (6, 10), expected one that broadcasts to (2, 4, 4, 6) = (batch, heads_q, "
                 "queries, keys), beside cu_seqlens those of the longest sequence up to max_seqlen");
  }
}

INSTANTIATE_TEST_SUITE_P(All, ErrorsTest, testing::ValuesIn(all_errors()),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
