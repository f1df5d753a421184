// NaN, infinities and the largest numbers: a row with a visible NaN score is NaN, hidden ones never matter, +inf scores
// are NaN as in the formula, and a bias of -FLT_MAX, a mask by arithmetic, is a number like any other.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <tessella/attention.hpp>
#include <vector>

#include "cases/gpu_twin.hpp"
#include "cases/kernels.hpp"
#include "cases/random.hpp"
#include "cases/run_on.hpp"
#include "portable/float16.hpp"

namespace tessella::tests {
namespace {

constexpr int64_t kHeadDim = 64;
constexpr int64_t kHeads = 2;  // of queries; they share one KV head
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

// Inputs in fp32, exact in bf16 where a test puts no others; bias and mask are [query][key], for all heads.
struct Inputs {
  explicit Inputs(int64_t length) : n(length), q(fill(kHeads)), k(fill(1)), v(fill(1)) {}

  int64_t n;
  Random random{1};
  std::vector<float> q, k, v;
  std::vector<float> bias;
  std::vector<uint8_t> visible;
  bool causal = false;
  float softcap = 0;  // 0: none

  float* query(int64_t i, int64_t head) { return q.data() + (i * kHeads + head) * kHeadDim; }
  float* key(int64_t j) { return k.data() + j * kHeadDim; }
  float* value(int64_t j) { return v.data() + j * kHeadDim; }
  void set_bias(float value) { bias.assign(static_cast<size_t>(n * n), value); }
  void set_visible(bool value) { visible.assign(static_cast<size_t>(n * n), value ? 1 : 0); }
  float& bias_at(int64_t i, int64_t j) { return bias[static_cast<size_t>(i * n + j)]; }
  uint8_t& visible_at(int64_t i, int64_t j) { return visible[static_cast<size_t>(i * n + j)]; }
  bool sees(int64_t i, int64_t j) const {
    return (!causal || j <= i) && (visible.empty() || visible[static_cast<size_t>(i * n + j)] != 0);
  }

 private:
  // Multiples of 1 / 64 in [-1, 1] without 0.
  std::vector<float> fill(int64_t heads) {
    std::vector<float> values(static_cast<size_t>(n * heads * kHeadDim));
    for (float& x : values) x = static_cast<float>(random.in(1, 64)) * (random.chance(0.5) ? 1.0f : -1.0f) / 64;
    return values;
  }
};

struct Row {
  std::vector<double> out = std::vector<double>(kHeadDim, 0.0);
  double lse = 0;
};

// The formula, in double.
Row expected_row(const Inputs& in, int64_t i, int64_t head) {
  std::vector<double> scores;
  std::vector<int64_t> keys;
  double largest = -std::numeric_limits<double>::infinity();
  bool has_nan = false;
  for (int64_t j = 0; j < in.n; ++j) {
    if (!in.sees(i, j)) continue;
    double score = 0;
    for (int64_t c = 0; c < kHeadDim; ++c) {
      score += static_cast<double>(in.q[static_cast<size_t>((i * kHeads + head) * kHeadDim + c)]) *
               static_cast<double>(in.k[static_cast<size_t>(j * kHeadDim + c)]);
    }
    score /= 8;
    if (in.softcap > 0) score = std::tanh(score / static_cast<double>(in.softcap)) * static_cast<double>(in.softcap);
    if (!in.bias.empty()) score += static_cast<double>(in.bias[static_cast<size_t>(i * in.n + j)]);
    has_nan = has_nan || std::isnan(score);
    largest = std::max(largest, score);
    scores.push_back(score);
    keys.push_back(j);
  }
  Row row;
  if (!has_nan && largest == -std::numeric_limits<double>::infinity()) {
    row.lse = largest;
    return row;
  }
  if (has_nan) largest = std::numeric_limits<double>::quiet_NaN();
  double sum = 0;
  for (const double score : scores) sum += std::exp(score - largest);
  for (size_t s = 0; s < scores.size(); ++s) {
    for (int64_t c = 0; c < kHeadDim; ++c) {
      row.out[static_cast<size_t>(c)] +=
          std::exp(scores[s] - largest) / sum * static_cast<double>(in.v[static_cast<size_t>(keys[s] * kHeadDim + c)]);
    }
  }
  row.lse = largest + std::log(sum);
  return row;
}

bool agree(double found, double expected, double tolerance) {
  if (std::isnan(expected) || std::isnan(found)) return std::isnan(expected) && std::isnan(found);
  if (std::isinf(expected) || std::isinf(found)) return expected == found;
  return std::abs(found - expected) <= tolerance * (1 + std::abs(expected));
}

// Whether this machine has it.
bool has_amx() {
  for (int32_t idx = 0; idx < tessella_kernel_count(); ++idx) {
    tessella_kernel_info info = TESSELLA_KERNEL_INFO_INIT;
    detail::check(tessella_kernel_describe(idx, &info));
    if (std::string_view(info.name) == "cpu.forward_amx") return info.unavailable[0] == '\0';
  }
  return false;
}

class Nan : public EachKernel {
 protected:
  static constexpr int64_t kLengths[] = {3, 40, 130};

  bool only_bf16_ = false, without_bf16_ = false;

  // Runs the inputs that `change` makes in every dtype and length, with LSE and without. Against the formula; or by
  // tessella_check, which knows what NaN may reach.
  template <typename Change>
  void check(Change&& change, bool by_library = false) {
    by_library_ = by_library;
    for (const DType dtype : {f64, f32, bf16}) {
      if (!GetParam().computes(name_of(dtype)) || (only_bf16_ && dtype != bf16)) continue;
      if (without_bf16_ && dtype == bf16) continue;
      for (const int64_t n : kLengths) {
        Inputs in(n);
        change(in);
        std::vector<Row> rows;
        for (int64_t i = 0; i < n; ++i) {
          for (int64_t head = 0; head < kHeads; ++head) rows.push_back(expected_row(in, i, head));
        }
        SCOPED_TRACE(std::string(name_of(dtype)) + ", seqlen " + std::to_string(n));
        for (const bool wants_lse : {true, false}) run(in, dtype, wants_lse, rows);
      }
    }
  }

 private:
  bool by_library_ = false;

  void forward_where_the_kernel_is(const ForwardArgs& args, const AttentionOptions& options) {
    const detail::ForwardCall call(args, options);
    if (!GetParam().is_on_gpu()) {
      detail::check(tessella_forward(&call.args, &call.options, nullptr));
      if (by_library_) expect_passed(call.args, call.options);
      return;
    }
    GpuTwin twin(blocks_of(call.args), false);
    const tessella_forward_args on_gpu = twin.args(call.args, true);
    detail::check(tessella_forward(&on_gpu, &call.options, twin.stream()));
    if (by_library_) expect_passed(on_gpu, call.options);
    EXPECT_EQ(twin.download(), "");
  }

  static void expect_passed(const tessella_forward_args& args, const tessella_attention_options& options) {
    const tessella_call call = {sizeof(tessella_call), TESSELLA_FORWARD, &args, &options};
    tessella_check_report report = TESSELLA_CHECK_REPORT_INIT;
    detail::check(tessella_check(&call, 0, 0, &report));
    EXPECT_EQ(report.passed, 1) << "query " << report.worst_index[1] << ", head " << report.worst_index[2]
                                << ", column " << report.worst_index[3] << ": " << report.worst_got << ", expected "
                                << report.worst_expected;
  }

  // The elements in every dtype.
  struct Operand {
    explicit Operand(const std::vector<float>& from) : wide(from), widest(from.begin(), from.end()) {
      for (const float x : from) narrow.push_back(portable::to_bfloat16(x).bits);
    }
    TensorView view(DType dtype, int64_t length, int64_t heads) const {
      const void* data = narrow.data();
      if (dtype == f32) data = wide.data();
      if (dtype == f64) data = widest.data();
      return tessella::view(data, dtype, {1, length, heads, kHeadDim});
    }
    std::vector<uint16_t> narrow;
    const std::vector<float>& wide;
    std::vector<double> widest;
  };

  void run(const Inputs& in, DType dtype, bool wants_lse, const std::vector<Row>& rows) {
    const Operand q(in.q), k(in.k), v(in.v);
    std::vector<float> out(in.q.size(), 7), lse(static_cast<size_t>(kHeads * in.n), 7);
    ForwardArgs args{.q = q.view(dtype, in.n, kHeads),
                     .k = k.view(dtype, in.n, 1),
                     .v = v.view(dtype, in.n, 1),
                     .out = view(out.data(), f32, {1, in.n, kHeads, kHeadDim})};
    if (wants_lse) args.lse = view(lse.data(), f32, {1, kHeads, in.n});
    if (!in.bias.empty()) {
      args.bias = view(static_cast<const void*>(in.bias.data()), f32, {1, 1, in.n, in.n});
    }
    AttentionOptions options{.out_dtype = f32,
                             .batch_invariant = GetParam().is_for_few(),
                             .query_class = query_class_of(GetParam()),
                             .num_threads = 1,
                             .kernel = GetParam().name};
    options.softcap = static_cast<double>(in.softcap);
    if (!in.visible.empty()) {
      options.mask = Mask::dense(view(static_cast<const void*>(in.visible.data()), boolean, {1, 1, in.n, in.n}));
    }
    if (in.causal) options.mask = options.mask & Mask::causal();
    forward_where_the_kernel_is(args, options);
    if (by_library_) return;
    const double tolerance = dtype == bf16 ? 0.01 : 1e-4;
    int wrong = 0;
    for (int64_t i = 0; i < in.n; ++i) {
      for (int64_t head = 0; head < kHeads && wrong < 4; ++head) {
        const Row& row = rows[static_cast<size_t>(i * kHeads + head)];
        const auto at = static_cast<size_t>((i * kHeads + head) * kHeadDim);
        for (size_t c = 0; c < kHeadDim; ++c) {
          if (agree(static_cast<double>(out[at + c]), row.out[c], tolerance)) continue;
          ADD_FAILURE() << "out of query " << i << ", head " << head << ", column " << c << ": " << out[at + c]
                        << ", expected " << row.out[c] << (wants_lse ? "" : " (no LSE)");
          ++wrong;
          break;
        }
        const float found = lse[static_cast<size_t>(head * in.n + i)];
        if (!wants_lse || agree(static_cast<double>(found), row.lse, 1e-4)) continue;
        ADD_FAILURE() << "lse of query " << i << ", head " << head << ": " << found << ", expected " << row.lse;
        ++wrong;
      }
    }
  }
};

TEST_P(Nan, PlainIsRight) {
  check([](Inputs&) {});
}

TEST_P(Nan, InOneQuery) {
  check([](Inputs& in) { in.query(in.n / 2, 1)[5] = kNan; });
}

TEST_P(Nan, InEveryQuery) {
  check([](Inputs& in) {
    for (float& x : in.q) x = kNan;
  });
}

TEST_P(Nan, InOneVisibleKey) {
  check([](Inputs& in) { in.key(in.n - 1)[7] = kNan; });
}

// Above and below scores for which a series stands for tanh.
TEST_P(Nan, UnderASoftcap) {
  for (const float softcap : {0.5f, 30.0f, 1e10f}) {
    for (const bool causal : {false, true}) {
      const auto capped = [&](Inputs& in) {
        in.softcap = softcap;
        in.causal = causal;
      };
      check([&](Inputs& in) {
        capped(in);
        in.query(in.n / 2, 1)[5] = kNan;
      });
      check([&](Inputs& in) {
        capped(in);
        in.key(in.n / 2)[7] = kNan;
      });
      check([&](Inputs& in) {
        capped(in);
        for (float& x : in.q) x = 0;
      });
      if (causal) continue;
      // A score of some -9, whose small probability counts beside what it is multiplied by.
      only_bf16_ = GetParam().is_on_gpu();  // as InfiniteProducts
      check([&](Inputs& in) {
        capped(in);
        for (float& x : in.q) x = std::fabs(x);
        for (int64_t c = 0; c < kHeadDim; ++c) in.key(in.n / 2)[c] = -2.25f;
        in.value(in.n / 2)[3] = kInfinity;
      });
      only_bf16_ = false;
    }
  }
}

TEST_P(Nan, InOneKeyUnderACausalMask) {
  check([](Inputs& in) {
    in.causal = true;
    in.key(in.n / 2)[0] = kNan;
  });
}

// Keys from 64 on, or the second half of fewer, are NaN; every third query sees a few of them or all.
TEST_P(Nan, InATileUnderADenseMask) {
  for (const bool sees_finite : {true, false}) {
    for (const int64_t step : {1, 7}) {
      check([&](Inputs& in) {
        const int64_t begin = in.n > 64 ? 64 : in.n / 2;
        const int64_t end = in.n > 128 ? 128 : in.n;
        in.set_visible(sees_finite);
        for (int64_t j = begin; j < end; ++j) {
          in.key(j)[3] = kNan;
          for (int64_t i = 0; i < in.n; ++i) in.visible_at(i, j) = i % 3 == 0 && j % step == 0 ? 1 : 0;
        }
      });
    }
  }
}

TEST_P(Nan, InATileThatAllQueriesSee) {
  check([](Inputs& in) {
    const int64_t begin = in.n > 64 ? 64 : in.n / 2;
    for (int64_t j = begin; j < (in.n > 128 ? 128 : in.n); ++j) in.key(j)[3] = kNan;
    in.set_visible(true);
  });
}

TEST_P(Nan, BesideScoresOfMinusInfinity) {
  for (const bool first : {true, false}) {
    check([&](Inputs& in) {
      for (float& x : in.q) x = 1;
      for (int64_t j = 0; j < in.n; ++j) in.key(j)[0] = -kInfinity;
      in.key(first ? 0 : in.n - 1)[0] = kNan;
    });
  }
}

// Its low bits are set: rounding to bf16 by adding half a unit would carry into the sign.
TEST_P(Nan, InBiasWithEveryBitSet) {
  for (const uint32_t bits : {0x7FFFFFFFu, 0xFFFFFFFFu, 0x7F800001u}) {
    float nan;
    std::memcpy(&nan, &bits, sizeof nan);
    check([&](Inputs& in) {
      in.set_bias(0.5f);
      in.bias_at(1, in.n - 1) = nan;
      for (int64_t j = 0; j < in.n; ++j) in.bias_at(2, j) = nan;
    });
    check([&](Inputs& in) { in.set_bias(nan); });
  }
}

TEST_P(Nan, HiddenStaysHidden) {
  check([](Inputs& in) {
    in.set_visible(true);
    in.set_bias(0.25f);
    const int64_t hidden = in.n / 2;
    for (int64_t c = 0; c < kHeadDim; ++c) in.key(hidden)[c] = in.value(hidden)[c] = kNan;
    in.key(0)[0] = kNan;  // query 0 alone sees it
    in.bias_at(0, hidden) = kNan;
    for (int64_t i = 0; i < in.n; ++i) {
      in.visible_at(i, hidden) = 0;
      if (i > 0) in.visible_at(i, 0) = 0;
    }
  });
  check([](Inputs& in) {
    in.causal = true;
    in.key(in.n - 1)[0] = kNan;
    in.set_bias(0);
    for (int64_t i = 0; i < in.n; ++i) {
      for (int64_t j = i + 1; j < in.n; ++j) in.bias_at(i, j) = kNan;
    }
  });
  check([](Inputs& in) {  // a query that sees nothing, of keys that are all NaN
    in.set_visible(true);
    for (float& x : in.k) x = kNan;
    for (int64_t j = 0; j < in.n; ++j) in.visible_at(1, j) = 0;
  });
}

// exp(inf - inf) is NaN; where the product is -inf instead, the key has no weight.
TEST_P(Nan, InfiniteProducts) {
  only_bf16_ = GetParam().is_on_gpu();  // fp32 as two terms makes inf - inf of an infinite element: docs/numerics.md
  for (const int64_t third : {0, 1, 2}) {
    check([&](Inputs& in) { in.key(third * (in.n - 1) / 2)[0] = kInfinity; });
  }
  check([](Inputs& in) {
    for (int64_t j = 0; j < in.n; ++j) in.key(j)[0] = kInfinity;
  });
  check([](Inputs& in) { in.key(0)[0] = in.key(in.n - 1)[0] = -kInfinity; });
}

TEST_P(Nan, BiasOfTheLowestNumber) {
  check([](Inputs& in) { in.set_bias(-kLargest); });
  check([](Inputs& in) {
    in.set_bias(0);
    for (int64_t i = 0; i < in.n; ++i) {
      for (int64_t j = 0; j < in.n; ++j) {
        if (i % 2 == 0 || j % 3 == 0) in.bias_at(i, j) = -kLargest;
      }
    }
  });
  for (const float later : {0.0f, 800.0f, 1e30f, kLargest}) {
    check([&](Inputs& in) {
      in.set_bias(-kLargest);
      for (int64_t i = 0; i < in.n; ++i) {
        for (int64_t j = in.n / 2; j < in.n; ++j) in.bias_at(i, j) = j == in.n / 2 || later < 1e4f ? later : -kLargest;
      }
    });
  }
}

TEST_P(Nan, BiasOfLargeNumbers) {
  for (const float bias : {3e38f, -3e38f, kLargest, -kInfinity}) {
    check([&](Inputs& in) {
      in.set_bias(0);
      in.bias_at(0, 0) = in.bias_at(1, in.n - 1) = in.bias_at(2, in.n / 2) = bias;
    });
  }
}

// Scores far beyond 2^31, where the last place of the maximum is worth more than the exponent of a float. They are
// exact in fp32: the inputs are short fractions times a power of two.
TEST_P(Nan, LargeScores) {
  for (const int exponent : {20, 30, 40, 60, 100}) {
    // AMX up to 2^27 (docs/numerics.md), and so bf16 where forward_widened runs it.
    if (GetParam().name == "cpu.forward_amx" && exponent > 20) break;
    without_bf16_ = exponent > 20 && GetParam().name == "cpu.forward_widened" && has_amx();
    check([&](Inputs& in) {
      for (float& x : in.q) x = std::ldexp(x, exponent);
    });
  }
}

// What kernels make of values that are not finite, also where the rule lets NaN reach rows that do not see them, passes
// the library's own check.
TEST_P(Nan, InValuesPassesTheCheck) {
  for (const float value : {kNan, kInfinity, -kInfinity}) {
    for (const int64_t third : {0, 1, 2}) {
      const auto spoiled = [&](Inputs& in) { in.value(third * (in.n - 1) / 2)[3] = value; };
      check(spoiled, true);
      check(
          [&](Inputs& in) {
            in.causal = true;
            spoiled(in);
          },
          true);
      check(
          [&](Inputs& in) {  // every third query sees it, by a mask or as padding by a bias
            spoiled(in);
            in.set_visible(true);
            in.set_bias(0);
            for (int64_t i = 0; i < in.n; ++i) {
              in.visible_at(i, third * (in.n - 1) / 2) = i % 3 == 0 ? 1 : 0;
              in.bias_at(i, in.n / 2) = -kInfinity;
            }
            for (int64_t j = 0; j < in.n; ++j) in.visible_at(1, j) = 0;  // this one sees no key
          },
          true);
      check(
          [&](Inputs& in) {  // it counts nothing in float, and something in double
            spoiled(in);
            in.set_bias(0);
            for (int64_t i = 0; i < in.n; ++i) in.bias_at(i, third * (in.n - 1) / 2) = -200;
          },
          true);
    }
  }
}

TEST_P(Nan, InQueriesAndKeysPassesTheCheck) {
  for (const float value : {kNan, kInfinity, -kInfinity}) {
    for (const bool causal : {false, true}) {
      check(
          [&](Inputs& in) {
            in.causal = causal;
            in.query(in.n / 3, 1)[5] = value;
          },
          true);
      check(
          [&](Inputs& in) {
            in.causal = causal;
            in.key(in.n / 2)[7] = value;
          },
          true);
    }
  }
}

std::vector<KernelInfo> kernels_and_reference() {
  std::vector<KernelInfo> kernels;
  for (const KernelInfo& kernel : kernels_of("forward")) {
    if (kernel.name.rfind("reference.", 0) != 0 || kernel.name == "reference.attention") kernels.push_back(kernel);
  }
  return kernels;
}

INSTANTIATE_TEST_SUITE_P(Kernels, Nan, testing::ValuesIn(kernels_and_reference()), kernel_test_name);

}  // namespace
}  // namespace tessella::tests
