// The caller's rounding mode and flushing change no bit of a result, on one thread or on two, and are as they were
// behind the call.
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "cases/call.hpp"
#include "cases/cases.hpp"
#include "cases/float_mode.hpp"
#include "cases/kernels.hpp"
#include "cases/linear_call.hpp"
#include "cases/merge_call.hpp"

namespace tessella::tests {
namespace {

// results(threads, mode): of a fresh call. Those of every mode and number of threads are those of the first.
template <typename Results>
void expect_same_bits(const Results& results) {
  std::vector<std::byte> expected;
  for (const int threads : {1, 2}) {
    for (const CallersMode& mode : callers_modes()) {
      SCOPED_TRACE(std::string(mode.name) + ", " + std::to_string(threads) + " threads");
      const std::vector<std::byte> found = results(threads, mode);
      if (expected.empty()) expected = found;
      EXPECT_EQ(found, expected);
    }
  }
}

class CallersModes : public EachKernel {};

// Scores of a large spread: probabilities below 2^-126. The default scale of 80 columns is rounded.
TEST_P(CallersModes, ChangeNoBit) {
  for (const char* dtype : {"f32", "bf16", "f16", "f64"}) {
    if (!GetParam().computes(dtype)) continue;
    for (const bool has_features : {false, true}) {
      Case c = {.kernel = GetParam().name,
                .dtype = dtype,
                .out_dtype = "f32",
                .heads_q = 2,
                .heads_kv = 2,
                .seqlen_q = 60,
                .seqlen_kv = 90,
                .head_dim_qk = 80,
                .head_dim_v = 80,
                .spread = 30,
                .batch_invariant = GetParam().is_for_few(),
                .few = GetParam().is_for_few(),
                .seed = 3};
      if (has_features) c.bias = "bhqk", c.bias_f32 = true, c.alibi = "h", c.sink = true, c.dropout = 0.37;
      expect_same_bits([&](int threads, const CallersMode& mode) {
        c.threads = threads;
        Call call(c);
        EXPECT_TRUE(keeps_mode(mode, [&] { EXPECT_EQ(call.run_plain(), TESSELLA_OK) << tessella_last_error(); }));
        return call.results();
      });
    }
  }
}

// A call that fails leaves it alone too.
TEST_P(CallersModes, AreBackBehindAnError) {
  Case c = {.kernel = GetParam().name, .dtype = GetParam().computes("f32") ? "f32" : "bf16", .threads = 2};
  for (const CallersMode& mode : callers_modes()) {
    Call call(c);
    tessella_forward_args args = call.args();
    args.k = nullptr;
    tessella_status status = TESSELLA_OK;
    EXPECT_TRUE(keeps_mode(mode, [&] { status = tessella_forward(&args, &call.options(), nullptr); }));
    EXPECT_EQ(status, TESSELLA_INVALID_ARGUMENT);
  }
}

class CallersModesOfMerge : public EachKernel {};

TEST_P(CallersModesOfMerge, ChangeNoBit) {
  const MergeCase c = {
      .kernel = GetParam().name, .num_states = 5, .batch = 2, .seqlen = 500, .heads = 3, .head_dim = 80, .seed = 5};
  expect_same_bits([&](int threads, const CallersMode& mode) {
    MergeCase of = c;
    of.num_threads = threads;
    MergeCall call(of);
    EXPECT_TRUE(keeps_mode(mode, [&] { EXPECT_EQ(call.run(), TESSELLA_OK) << tessella_last_error(); }));
    return call.results();
  });
}

class CallersModesOfLinear : public EachKernel {};

TEST_P(CallersModesOfLinear, ChangeNoBit) {
  if (GetParam().name == "cpu.linear_blas") GTEST_SKIP() << "a BLAS's threads have modes of their own";
  LinearCase c = {
      .kernel = GetParam().name, .swiglu = true, .rows = 9, .in_features = 300, .out_features = 700, .seed = 5};
  if (!GetParam().computes("f32")) c.dtype = c.w_dtype = c.out_dtype = TESSELLA_BF16;
  expect_same_bits([&](int threads, const CallersMode& mode) {
    c.num_threads = threads;
    LinearCall call(supported(c));
    EXPECT_TRUE(keeps_mode(mode, [&] { EXPECT_EQ(call.run(), TESSELLA_OK) << tessella_last_error(); }));
    return call.results();
  });
}

std::vector<KernelInfo> cpu_kernels_of(const std::string& operation) {
  std::vector<KernelInfo> kernels = kernels_of(operation);
  std::erase_if(kernels, [](const KernelInfo& kernel) { return kernel.is_on_gpu(); });
  return kernels;
}

INSTANTIATE_TEST_SUITE_P(Kernels, CallersModes, testing::ValuesIn(cpu_kernels_of("forward")), kernel_test_name);
INSTANTIATE_TEST_SUITE_P(Kernels, CallersModesOfMerge, testing::ValuesIn(cpu_kernels_of("merge")), kernel_test_name);
INSTANTIATE_TEST_SUITE_P(Kernels, CallersModesOfLinear, testing::ValuesIn(cpu_kernels_of("linear")), kernel_test_name);

}  // namespace
}  // namespace tessella::tests
