// backward: the reference against finite differences, and every kernel against the reference.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "cases/backward_call.hpp"
#include "cases/backward_features.hpp"
#include "cases/configurations.hpp"
#include "cases/kernels.hpp"
#include "cases/tensor_places.hpp"
#include "cases/wrong_forward.hpp"

namespace tessella::tests {
namespace {

Case feature_case(const std::string& kernel, const std::string& feature) {
  Case c =
      with_feature("batch=2 heads_q=4 heads_kv=2 seqlen_q=9 seqlen_kv=11 head_dim_qk=5 head_dim_v=7 seed=3", feature);
  c.kernel = kernel;
  return c;
}

double element_of(const tessella_tensor& t, int64_t at) {
  if (t.dtype == TESSELLA_F64) return static_cast<const double*>(t.data)[at];
  return static_cast<const float*>(t.data)[at];
}
void set_element(const tessella_tensor& t, int64_t at, double value) {
  if (t.dtype == TESSELLA_F64) {
    static_cast<double*>(t.data)[at] = value;
  } else {
    static_cast<float*>(t.data)[at] = static_cast<float>(value);
  }
}

// sum dO . out + sum dLSE . lse of the forward call as its inputs are now; what is NaN or infinite is of no query.
double loss(const BackwardCall& call) {
  tessella_attention_options options = call.options();
  options.kernel = "reference.attention";
  EXPECT_EQ(tessella_forward(&call.forward().args(), &options, nullptr), TESSELLA_OK) << tessella_last_error();
  double sum = 0;
  const tessella_backward_args& args = const_cast<BackwardCall&>(call).args();
  const auto add = [&](const tessella_tensor* gradient, const tessella_tensor& of) {
    if (gradient == nullptr) return;
    for (int64_t at = 0; at < extent(of); ++at) {
      const double d = element_of(*gradient, at);
      if (!std::isnan(d)) sum += d * element_of(of, at);
    }
  };
  add(args.d_out, *call.forward().args().out);
  add(args.d_lse, *call.forward().args().lse);
  return sum;
}

// Of dense tensors: element n of the gradient is of element n.
void compare_with_differences(const BackwardCall& call, const std::string& name, const tessella_tensor& input) {
  const std::vector<double> gradient = call.values(name);
  const double step = input.dtype == TESSELLA_F64 ? 1e-5 : 1.0 / 256;
  for (int64_t at = 0; at < extent(input); ++at) {
    const double was = element_of(input, at);
    if (!std::isfinite(was)) {  // no query sees it, or a bias of -inf
      EXPECT_EQ(gradient[static_cast<size_t>(at)], 0) << name << " " << at;
      continue;
    }
    set_element(input, at, was + step);
    const double above = element_of(input, at), loss_above = loss(call);
    set_element(input, at, was - step);
    const double below = element_of(input, at), loss_below = loss(call);
    set_element(input, at, was);
    const double slope = (loss_above - loss_below) / (above - below);
    const double tolerance = (input.dtype == TESSELLA_F64 ? 1e-7 : 3e-4) * (1 + std::abs(slope));
    EXPECT_NEAR(gradient[static_cast<size_t>(at)], slope, tolerance) << name << " " << at;
  }
}

TEST(BackwardReference, IsTheSlopeOfTheForward) {
  for (const std::string& feature : backward_features()) {
    SCOPED_TRACE(feature);
    Case c = feature_case("reference.backward", feature);
    c.dtype = "f64";
    c.seed = 4;  // an LSE of doubles
    BackwardCall call(c);
    ASSERT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();
    const tessella_forward_args& forward = call.forward().args();
    compare_with_differences(call, "dq", *forward.q);
    compare_with_differences(call, "dk", *forward.k);
    compare_with_differences(call, "dv", *forward.v);
    if (!c.bias.empty()) compare_with_differences(call, "d_bias", *forward.bias);
    if (c.sink) compare_with_differences(call, "d_sink", *forward.sink);
    if (!c.alibi.empty()) compare_with_differences(call, "d_alibi_slopes", *forward.alibi_slopes);
  }
}

class Backward : public EachKernel {
 protected:
  static void expect_right(const Case& given) {
    const Case c = supported(given);
    const Outcome outcome = run_backward_case(c);
    EXPECT_EQ(outcome.verdict, Verdict::passed) << outcome.message << "\n" << to_string(c);
  }
  Case base(const std::string& fields) const {
    Case c = parse(fields);
    c.kernel = GetParam().name;
    if (!GetParam().computes(c.dtype)) c.dtype = "bf16";
    if (c.gradients.empty()) c.gradients = "qkv";
    return c;
  }
  // Each dtype that the kernel computes.
  template <typename Fn>
  void each_dtype(Fn&& fn) const {
    for (const char* dtype : {"f64", "f32", "bf16", "f16"}) {
      if (GetParam().computes(dtype)) fn(dtype);
    }
  }
  // Of a dtype that the kernel need not compute.
  void expect_each_feature(const char* dtype) const {
    if (!GetParam().computes(dtype)) GTEST_SKIP() << GetParam().name << " does not compute " << dtype;
    for (const std::string& feature : backward_features()) {
      Case c = feature_case(GetParam().name, feature);
      c.dtype = dtype;
      expect_right(c);
      c.seqlen_q = 51;  // query tiles of 48 or 64 rows, tiles of 32 or 64 keys
      c.seqlen_kv = 67;
      c.head_dim_qk = c.head_dim_v = 16;
      c.plan = true;
      c.seed = 9;
      expect_right(c);
    }
  }
};

// A test a dtype: the kernels of a GPU are compiled for every feature.
TEST_P(Backward, EachFeatureF64) { expect_each_feature("f64"); }
TEST_P(Backward, EachFeatureF32) { expect_each_feature("f32"); }
TEST_P(Backward, EachFeatureBf16) { expect_each_feature("bf16"); }
TEST_P(Backward, EachFeatureF16) { expect_each_feature("f16"); }

TEST_P(Backward, KeysThatNoQuerySeesMayHoldNaN) {
  for (const std::string features : {"causal_top_left=1", "causal_top_left=1 softcap=2", "dense=k softcap=3",
                                     "causal_top_left=1 softcap=2 dropout=0.2 bias=qk", "causal_top_left=1 chunk=16"}) {
    each_dtype([&](const char* dtype) {
      Case c = feature_case(GetParam().name, features + " masked_nan=1");
      c.dtype = dtype;
      expect_right(c);
    });
  }
}

TEST_P(Backward, QueriesThatSeeNoKeyMayHoldNaNBesideASink) {
  for (const std::string& features : idle_rows_beside_a_sink()) {
    each_dtype([&](const char* dtype) {
      Case c = with_feature("batch=2 heads_q=4 heads_kv=2 seqlen_q=70 seqlen_kv=90 head_dim_qk=16 head_dim_v=16 seed=3",
                            features);
      c.kernel = GetParam().name;
      c.dtype = dtype;
      expect_right(c);
    });
  }
}

TEST_P(Backward, RandomCases) {
  constexpr int kConfigurations = 6;  // of a GPU's kernels, which are compiled for them
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    const auto& [name, dtypes] = std::tie(GetParam().name, GetParam().dtypes);
    const Configuration config = configuration(static_cast<int>(seed % kConfigurations), dtypes, Takes::backward);
    expect_right(GetParam().is_on_gpu() ? backward_of(random_case_of(config, seed, name))
                                        : random_backward_case(seed, name, dtypes));
  }
}

// Many P are below f16's normal range, and their rounding counts a hundred times. With a bound that had no smallest
// steps of f16, cuda.backward_sm90 failed this case.
TEST_P(Backward, SmallProbabilitiesBesideDropout) {
  each_dtype([&](const char* dtype) {
    Case c = base(
        "shift=16 heads_q=9 heads_kv=3 seqlen_q=3 seqlen_kv=127 head_dim_qk=16 head_dim_v=16 packed_q=1 packed_kv=1 "
        "seqlens_kv=1 bias=bhqk scale=0.5713674237213583 dropout=0.99 spread=8 plan=1 need_not_be_deterministic=1 "
        "guard=1 "
        "gradients=qkvb seed=5150000037451");
    c.dtype = dtype;
    expect_right(c);
  });
}

// Dropout leaves only keys of tiny P, so that out is 0 in fp32, and so is the delta that it gives.
TEST_P(Backward, OutBelowFp32) {
  if (!GetParam().computes("f64")) GTEST_SKIP() << "computes in fp32";
  expect_right(base(
      "dtype=f64 out_dtype=f32 batch=3 heads_q=4 heads_kv=2 seqlen_q=3 seqlen_kv=17 head_dim_qk=128 head_dim_v=28 "
      "seqlens_kv=1 window_left=35 prefix=1 scale=0.4525932354314004 dropout=0.99 spread=8 mean=-8.109642983122837 "
      "threads=2 gradients=qkv seed=5000039047"));
}

TEST_P(Backward, OnlyWhatIsAskedFor) {
  for (const char* gradients : {"q", "k", "v", "qk", "b", "s", "a", "vb", "qa"}) {
    Case c = base("heads_q=2 heads_kv=1 seqlen_q=20 seqlen_kv=70 bias=qk alibi=h sink=1 window_right=0");
    c.gradients = gradients;
    expect_right(c);
  }
}

TEST_P(Backward, EmptySizes) {
  for (const char* sizes : {"seqlen_q=0", "seqlen_kv=0", "batch=0", "seqlen_q=0 seqlen_kv=0"}) {
    Case c = base(std::string("heads_q=2 bias=k alibi=h sink=1 ") + sizes);
    c.gradients = "qkvbsa";
    expect_right(c);
  }
}

TEST_P(Backward, AddsToWhatIsThere) {
  each_dtype([&](const char* dtype) {
    Case c = base("batch=2 heads_q=4 heads_kv=2 seqlen_q=19 seqlen_kv=21 bias=hq alibi=h sink=1 seqlens_kv=1");
    c.dtype = dtype;
    c.gradients = "qkvbsa";
    c.gradients_f32 = true;
    c = supported(c);
    BackwardCall alone(c), added(c);
    ASSERT_EQ(alone.run(), TESSELLA_OK) << tessella_last_error();
    const char* names[] = {"dq", "dk", "dv", "d_bias", "d_sink", "d_alibi_slopes"};
    const auto is_wanted = [&](const char* name) {
      return std::strcmp(name, "d_alibi_slopes") != 0 || c.gradients.find('a') != c.gradients.npos;
    };
    for (const char* name : names) {
      if (is_wanted(name)) added.set_values(name, 0.75);
    }
    added.args().accumulate = TESSELLA_DQ | TESSELLA_DV | TESSELLA_D_BIAS | TESSELLA_D_SINK;
    ASSERT_EQ(added.run(), TESSELLA_OK) << tessella_last_error();
    for (const char* name : names) {
      if (!is_wanted(name)) continue;
      const double there = std::strcmp(name, "dk") == 0 || std::strcmp(name, "d_alibi_slopes") == 0 ? 0 : 0.75;
      const std::vector<double> want = alone.values(name), got = added.values(name);
      for (size_t n = 0; n < want.size(); ++n) {
        ASSERT_NEAR(got[n], want[n] + there, 1e-6 * (1 + std::abs(want[n]))) << name << " " << n;
      }
    }
  });
}

// Sums have one order: blocks of keys take turns at a query's gradient.
TEST_P(Backward, BitsDoNotDependOnThreads) {
  for (const char* feature : {"", "window_right=0", "window_left=90 window_right=20 keep_first=130", "alibi=h"}) {
    Case c =
        base(std::string("heads_q=3 heads_kv=1 seqlen_q=210 seqlen_kv=700 head_dim_qk=24 head_dim_v=24 ") + feature);
    if (!c.alibi.empty()) c.gradients = "qkva";
    if (GetParam().is_reference()) c.seqlen_kv = 90;
    c = supported(c);
    BackwardCall first(c);
    ASSERT_EQ(first.run(), TESSELLA_OK) << tessella_last_error();
    for (int threads : {2, 3, 7}) {
      c.threads = threads;
      BackwardCall other(c);
      ASSERT_EQ(other.run(), TESSELLA_OK) << tessella_last_error();
      EXPECT_EQ(first.results(), other.results()) << threads << " threads, " << feature;
    }
  }
}

// The check knows nothing of the out and LSE that the kernel was given.
TEST_P(Backward, AWrongForwardIsCaught) {
  if (GetParam().name == "reference.backward") GTEST_SKIP() << "it finds out and LSE by itself";
  each_dtype([&](const char* dtype) {
    for (const char* what : kWrongForwards) {
      Case c = base("heads_q=4 heads_kv=2 seqlen_q=40 seqlen_kv=50 head_dim_qk=16 head_dim_v=16 spread=2");
      c.dtype = dtype;
      const Catch found = run_wrong_forward(supported(c), what);
      EXPECT_EQ(found.caught, Caught::yes) << dtype << " " << what << ": " << found.message;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Kernels, Backward, testing::ValuesIn(kernels_of("backward")), kernel_test_name);

}  // namespace
}  // namespace tessella::tests
