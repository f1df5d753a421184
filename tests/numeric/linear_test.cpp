// linear on every kernel of the library against the reference, and the reference by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "cases/kernels.hpp"
#include "cases/linear_call.hpp"
#include "cases/tensor_elements.hpp"

namespace tessella::tests {
namespace {

class Linear : public EachKernel {
 protected:
  LinearCase base() const {
    const int32_t dtype = GetParam().computes("bf16") ? TESSELLA_BF16 : TESSELLA_F32;
    return {.kernel = GetParam().name,
            .dtype = dtype,
            .w_dtype = dtype,
            .out_dtype = dtype,
            .rows = 3,
            .in_features = 256,
            .out_features = 128};
  }
  static std::string run(const LinearCase& c) {
    LinearCall call(supported(c));
    if (call.run() != TESSELLA_OK) return to_string(c) + ": " + tessella_last_error();
    return call.check();
  }
};

TEST_P(Linear, RandomCases) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    LinearCall call(random_linear(GetParam().name, GetParam().dtypes, seed));
    ASSERT_EQ(call.run(), TESSELLA_OK) << to_string(call.data()) << tessella_last_error();
    ASSERT_EQ(call.check(), "");
  }
}

TEST_P(Linear, Rows) {
  for (int64_t rows = 0; rows <= 70; ++rows) {
    LinearCase c = base();
    c.rows = rows;
    c.seed = static_cast<uint64_t>(rows) + 1;
    ASSERT_EQ(run(c), "");
  }
  LinearCase c = base();
  c.rows = 300;
  ASSERT_EQ(run(c), "");
}

TEST_P(Linear, Columns) {
  for (int64_t columns = 1; columns <= 140; ++columns) {
    LinearCase c = base();
    c.in_features = columns;
    c.out_features = 141 - columns;
    c.guard = true;
    ASSERT_EQ(run(c), "");
  }
}

// Weights that many threads, blocks and splits share, whole tiles and not.
TEST_P(Linear, LargeWeights) {
  for (const auto& [in, out] : {std::pair{4096, 520}, std::pair{1000, 1999}, std::pair{8192, 64}}) {
    LinearCase c = base();
    c.rows = 5;
    c.in_features = in;
    c.out_features = out;
    c.swiglu = true;
    c.positive = true;
    ASSERT_EQ(run(c), "");
  }
}

// NaN and infinities of a row of x or of w reach the elements that are computed from it, and no other.
TEST_P(Linear, NotFinite) {
  for (const double value : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    for (const bool in_x : {true, false}) {
      LinearCase c = base();
      c.rows = 9;
      LinearCall call(supported(c));
      const tessella_tensor& t = in_x ? call.x() : call.w();
      set(t, 5 * t.strides[0] + 70, value);
      ASSERT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();
      ASSERT_EQ(call.check(), "");
    }
  }
}

// Every run has the same bits.
TEST_P(Linear, Repeats) {
  for (const int64_t rows : {1, 8, 40}) {
    LinearCase c = base();
    c.rows = rows;
    c.in_features = 3000;
    LinearCall call(supported(c));
    ASSERT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();
    const std::vector<std::byte> first = call.results();
    for (int i = 0; i < 3; ++i) {
      ASSERT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();
      ASSERT_EQ(call.results(), first);
    }
  }
}

// Blocks of columns that several threads take have the bits that one thread's have.
TEST_P(Linear, ThreadsChangeNoBit) {
  LinearCase c = base();
  c.rows = 70;
  c.in_features = 1000;
  c.out_features = 700;
  c.swiglu = true;
  if (GetParam().is_on_gpu() || c.kernel == "cpu.linear_blas") GTEST_SKIP() << "has threads of its own";
  std::vector<std::byte> expected;
  for (const int32_t threads : {1, 2, 3}) {
    c.num_threads = threads;
    LinearCall call(supported(c));
    ASSERT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();
    if (expected.empty()) expected = call.results();
    ASSERT_EQ(call.results(), expected) << threads;
  }
}

// With batch_invariant a row has the bits that it has alone.
TEST_P(Linear, BatchInvariant) {
  LinearCase c = base();
  c.batch_invariant = true;
  if (!supported(c).batch_invariant) GTEST_SKIP() << "is not";
  c.in_features = 1536;
  c.rows = 70;
  LinearCall all(c);
  ASSERT_EQ(all.run(), TESSELLA_OK) << tessella_last_error();
  for (const int64_t rows : {1, 2, 5, 8, 9, 17, 33, 64}) {
    LinearCase few = c;
    few.rows = rows;
    LinearCall call(few);
    std::memcpy(call.x().data, all.x().data, static_cast<size_t>(rows * c.in_features * size_of(c.dtype)));
    std::memcpy(call.w().data, all.w().data, static_cast<size_t>(c.out_features * c.in_features * size_of(c.dtype)));
    ASSERT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();
    ASSERT_EQ(
        std::memcmp(call.out().data, all.out().data, static_cast<size_t>(rows * c.out_features * size_of(c.dtype))), 0)
        << rows;
  }
}

// A plan serves fewer rows than it was made for.
TEST_P(Linear, PlansOfMoreRows) {
  for (const int64_t rows : {0, 1, 9, 30}) {
    LinearCase c = base();
    c.rows = rows;
    c.plan = true;
    c.max_rows = 64;
    ASSERT_EQ(run(c), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, Linear, testing::ValuesIn(kernels_of("linear")), kernel_test_name);

// By hand, of small whole numbers: x = (1, 2), w = ((1, 1), (0, 3)), bias = (10, 20).
TEST(LinearReference, ByHand) {
  float x[] = {1, 2}, w[] = {1, 1, 0, 3}, bias[] = {10, 20}, residual[] = {100, 200}, out[2];
  tessella_tensor x_t{.data = x, .dtype = TESSELLA_F32, .ndim = 2, .shape = {1, 2}, .strides = {2, 1}};
  tessella_tensor w_t{.data = w, .dtype = TESSELLA_F32, .ndim = 2, .shape = {2, 2}, .strides = {2, 1}};
  tessella_tensor bias_t{.data = bias, .dtype = TESSELLA_F32, .ndim = 1, .shape = {2}, .strides = {1}};
  tessella_tensor residual_t{.data = residual, .dtype = TESSELLA_F32, .ndim = 2, .shape = {1, 2}, .strides = {2, 1}};
  tessella_tensor out_t{.data = out, .dtype = TESSELLA_F32, .ndim = 2, .shape = {1, 2}, .strides = {2, 1}};
  tessella_linear_args args = TESSELLA_LINEAR_ARGS_INIT;
  args.x = &x_t;
  args.w = &w_t;
  args.bias = &bias_t;
  args.residual = &residual_t;
  args.out = &out_t;
  tessella_linear_options options = TESSELLA_LINEAR_OPTIONS_INIT;
  options.kernel = "reference.linear";
  ASSERT_EQ(tessella_linear(&args, &options, nullptr), TESSELLA_OK) << tessella_last_error();
  EXPECT_EQ(out[0], 113);  // 1 + 2 + 10 + 100
  EXPECT_EQ(out[1], 226);  // 6 + 20 + 200

  options.activation = TESSELLA_SWIGLU;  // silu(13) 26
  out_t.shape[1] = residual_t.shape[1] = 1;
  ASSERT_EQ(tessella_linear(&args, &options, nullptr), TESSELLA_OK) << tessella_last_error();
  EXPECT_FLOAT_EQ(out[0], static_cast<float>(100 + 13 / (1 + std::exp(-13.0)) * 26));
}

// The check sees one element that is wrong by a hundredth, whichever it is, and NaN.
TEST(LinearReference, TheCheckFails) {
  for (const int32_t dtype : {TESSELLA_F32, TESSELLA_BF16}) {
    for (const double wrong : {0.02, std::nan("")}) {
      for (int64_t column = 0; column < 20; column += 3) {
        LinearCase c{.kernel = "reference.linear", .dtype = dtype, .w_dtype = dtype, .out_dtype = dtype, .rows = 2};
        c.out_features = 20;
        LinearCall call(c);
        ASSERT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();
        ASSERT_EQ(call.check(), "");
        const double right = get(call.out(), 20 + column);
        set(call.out(), 20 + column, right + std::copysign(wrong * (1 + std::abs(right)), right));
        ASSERT_NE(call.check(), "") << column;
      }
    }
  }
}

}  // namespace
}  // namespace tessella::tests
