// The size of scores costs nothing where nothing was rounded at that size: bias, ALiBi and sinks of 100 and up, as
// standard attention in fp32 has them, which takes the maximum off before exp.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <tessella/attention.hpp>
#include <vector>

#include "cases/kernels.hpp"
#include "cases/random.hpp"
#include "cases/run_on.hpp"
#include "portable/float16.hpp"

namespace tessella::tests {
namespace {

// One query; q . k is 0 for every key, so that a score is its bias, less slope times its distance from the last key.
struct Row {
  std::vector<float> v, bias;
  float slope = 0;
  bool has_sink = false;
  float sink = 0;
};

struct Result {
  double out;
  double lse;
};

Result expected(const Row& row) {
  const auto n = static_cast<int64_t>(row.v.size());
  const auto score = [&](int64_t j) {
    const double bias = row.bias.empty() ? 0 : static_cast<double>(row.bias[static_cast<size_t>(j)]);
    return bias - static_cast<double>(row.slope) * static_cast<double>(n - 1 - j);
  };
  double max = row.has_sink ? static_cast<double>(row.sink) : -std::numeric_limits<double>::infinity();
  for (int64_t j = 0; j < n; ++j) max = std::max(max, score(j));
  double sum = row.has_sink ? std::exp(static_cast<double>(row.sink) - max) : 0;
  double out = 0;
  for (int64_t j = 0; j < n; ++j) {
    const double weight = std::exp(score(j) - max);
    sum += weight;
    out += weight * static_cast<double>(row.v[static_cast<size_t>(j)]);
  }
  return {out / sum, max + std::log(sum)};
}

constexpr int64_t kDim = 8;

// (1, rows, 1, kDim) of zeros, but what is set in the first column.
class Operand {
 public:
  Operand(const std::string& dtype, int64_t rows)
      : dtype_(dtype),
        rows_(rows),
        widest_(static_cast<size_t>(rows * kDim)),
        wide_(widest_.size()),
        narrow_(wide_.size()) {}
  void set(int64_t row, float value) {
    const auto at = static_cast<size_t>(row * kDim);
    widest_[at] = value;
    wide_[at] = value;
    narrow_[at] = portable::to_bfloat16(value).bits;
  }
  TensorView view() const {
    if (dtype_ == "f64") return tessella::view(static_cast<const void*>(widest_.data()), f64, {1, rows_, 1, kDim});
    if (dtype_ == "f32") return tessella::view(static_cast<const void*>(wide_.data()), f32, {1, rows_, 1, kDim});
    return tessella::view(static_cast<const void*>(narrow_.data()), bf16, {1, rows_, 1, kDim});
  }

 private:
  std::string dtype_;
  int64_t rows_;
  std::vector<double> widest_;
  std::vector<float> wide_;
  std::vector<uint16_t> narrow_;
};

class ScoreSize : public EachKernel {
 protected:
  // Out errs by some units in the last place of values of size 2, whatever the scores; LSE by one of its own.
  static void check(const Row& row) {
    for (const char* dtype : {"f64", "f32", "bf16"}) {
      const bool is_used = dtype == std::string("bf16") ? !GetParam().computes("f32") : GetParam().computes(dtype);
      if (is_used) check_in(dtype, row);
    }
  }
  static void check_in(const std::string& dtype, const Row& row) {
    SCOPED_TRACE(dtype);
    const auto n = static_cast<int64_t>(row.v.size());
    // v is the first column: rows of 8 elements start at multiples of 16 bytes, which every kernel takes.
    Operand q(dtype, 1), k(dtype, n), v(dtype, n);
    for (int64_t j = 0; j < n; ++j) v.set(j, row.v[static_cast<size_t>(j)]);
    float out[kDim] = {7}, lse = 7;
    ForwardArgs args{.q = q.view(),
                     .k = k.view(),
                     .v = v.view(),
                     .out = view(out, f32, {1, 1, 1, kDim}),
                     .lse = view(&lse, f32, {1, 1, 1})};
    if (!row.bias.empty()) args.bias = view(static_cast<const void*>(row.bias.data()), f32, {1, 1, 1, n});
    if (row.slope != 0) args.alibi_slopes = view(&row.slope, f32, {1});
    if (row.has_sink) args.sink = view(&row.sink, f32, {1});
    run_on(GetParam(), args,
           {.out_dtype = f32,
            .batch_invariant = GetParam().is_for_few(),
            .query_class = query_class_of(GetParam()),
            .num_threads = 1,
            .kernel = GetParam().name});

    const Result right = expected(row);
    EXPECT_NEAR(static_cast<double>(out[0]), right.out, dtype == "bf16" ? 2e-2 : 6e-7);
    EXPECT_NEAR(static_cast<double>(lse), right.lse, 1.2e-7 * std::abs(right.lse) + 3e-7);
  }

  // v is of size 1 to 2 and of either sign, so that a wrong weight shows.
  static Row row_of(int64_t n, Random& random) {
    Row row;
    for (int64_t j = 0; j < n; ++j) {
      row.v.push_back(static_cast<float>((1 + random.uniform()) * (random.chance(0.5) ? 1 : -1)));
    }
    return row;
  }
};

TEST_P(ScoreSize, BiasOf100) {
  check({{-1.39403f, 1.89401f}, {101.22117614746094f, 100.79112243652344f}});
  Random random(1);
  for (const double mean : {0.0, 100.0, -100.0, 3000.0, -1e6}) {
    for (const int64_t n : {2, 70, 300}) {
      Row row = row_of(n, random);
      for (int64_t j = 0; j < n; ++j) row.bias.push_back(static_cast<float>(mean + random.normal()));
      SCOPED_TRACE(std::to_string(mean) + ", " + std::to_string(n) + " keys");
      check(row);
    }
  }
}

// Maxima rise in every tile of keys.
TEST_P(ScoreSize, BiasThatGrows) {
  Random random(2);
  for (const double step : {1.0, 0.171, 13.7, -1.0}) {
    Row row = row_of(1000, random);
    for (int64_t j = 0; j < 1000; ++j) row.bias.push_back(static_cast<float>(step * static_cast<double>(j)));
    SCOPED_TRACE(step);
    check(row);
  }
}

// Beyond 2^24 in base 2, where a score and its neighbours in fp32 are whole numbers apart.
TEST_P(ScoreSize, BiasOf20Million) {
  for (const float of : {2e7f, -2e7f, 1e8f}) {
    const float next = of - 8;
    check({{1, -1, 1.5f, -0.5f}, {of, next, of, next}});
    check({{1, -1, 1.5f, -0.5f}, {next, of, next, next}});
  }
}

TEST_P(ScoreSize, BiasesOfTheLargestNumbers) {
  for (const float of : {-std::numeric_limits<float>::max(), -3.38953139e38f, -3e38f, -1e38f, 3e38f, 1e30f}) {
    SCOPED_TRACE(of);
    for (const int64_t n : {1, 3, 130}) {
      Row row;
      row.v.assign(static_cast<size_t>(n), 1.25f);
      row.bias.assign(static_cast<size_t>(n), of);
      check(row);
      row.bias.back() = of * 0.75f;
      check(row);
    }
  }
}

TEST_P(ScoreSize, Alibi) {
  Random random(3);
  for (const float slope : {-0.37f, 0.37f, -3.1f}) {
    Row row = row_of(300, random);
    row.slope = slope;
    SCOPED_TRACE(slope);
    check(row);
  }
}

TEST_P(ScoreSize, SinksBesideBias) {
  Random random(4);
  for (const float size : {100.0f, -100.0f, 5000.0f}) {
    for (const float beyond : {-1.0f, 0.3f, 3.0f, 20.0f}) {
      Row row = row_of(90, random);
      for (int64_t j = 0; j < 90; ++j) row.bias.push_back(size + static_cast<float>(random.normal()));
      row.has_sink = true;
      row.sink = size + beyond;
      check(row);
    }
  }
}

// The tolerance does not grow with scores that nothing rounds: an error of 2^-15, as of scores of 1000 rounded in
// base 2, is found.
TEST(CheckOfScoreSize, FindsWhatRoundingScoresCosts) {
  constexpr int64_t kKeys = 1000;
  const std::vector<float> zeros(kKeys);
  std::vector<float> v, bias;
  for (int64_t j = 0; j < kKeys; ++j) {
    v.push_back(j % 2 == 0 ? 1.0f : -1.0f);
    bias.push_back(static_cast<float>(j));
  }
  const auto of = [](const std::vector<float>& values, int64_t rows) {
    return view(static_cast<const void*>(values.data()), f32, {1, rows, 1, 1});
  };
  float out = 0, lse = 0;
  ForwardArgs args{.q = of(zeros, 1),
                   .k = of(zeros, kKeys),
                   .v = of(v, kKeys),
                   .out = view(&out, f32, {1, 1, 1, 1}),
                   .lse = view(&lse, f32, {1, 1, 1})};
  args.bias = view(static_cast<const void*>(bias.data()), f32, {1, 1, 1, kKeys});
  AttentionOptions options;
  options.kernel = "reference.attention";
  forward(args, options);
  EXPECT_TRUE(check_forward(args, options, 0).passed);
  out += 0x1p-15f;
  EXPECT_FALSE(check_forward(args, options, 0).passed);
}

INSTANTIATE_TEST_SUITE_P(Kernels, ScoreSize, testing::ValuesIn(kernels_of("forward")), kernel_test_name);

}  // namespace
}  // namespace tessella::tests
