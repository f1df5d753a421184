// Another thread ends a call by its flag: before it begins, or between two pieces of its work.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "cases/kernels.hpp"
#include "cases/run_on.hpp"
#include "tessella/attention.hpp"

namespace ts = tessella;

namespace tessella::tests {
namespace {

// Rows of zeros that all heads share: only out is as large as the call is long.
class Cancel : public EachKernel {
 protected:
  void SetUp() override {
    EachKernel::SetUp();
    if (!IsSkipped() && GetParam().is_on_gpu()) GTEST_SKIP() << "a GPU's kernels do not read the flag";
  }
  // Some seconds of work of one thread, in pieces of some milliseconds.
  bool is_fast() const { return GetParam().name.rfind("cpu.", 0) == 0; }
  int64_t rows() const { return is_fast() ? 8192 : 512; }
  int64_t heads() const { return is_fast() ? 16 : 128; }
  ts::DType dtype() const { return GetParam().computes("f32") ? ts::f32 : ts::bf16; }

  ts::AttentionOptions options(int threads) const {
    return {.batch_invariant = GetParam().is_for_few(),
            .query_class = query_class_of(GetParam()),
            .num_threads = threads,
            .kernel = GetParam().name};
  }

  ts::ForwardArgs args() {
    input_.assign(static_cast<size_t>(rows() * kDim), 0);
    out_.assign(static_cast<size_t>(rows() * heads() * kDim), -7);
    const auto input = ts::view(input_.data(), dtype(), {1, rows(), heads(), kDim}, {0, kDim, 0, 1});
    return {.q = input, .k = input, .v = input, .out = ts::view(out_.data(), ts::f32, {1, rows(), heads(), kDim})};
  }

  static constexpr int64_t kDim = 64;
  std::vector<float> input_, out_;
};

TEST_P(Cancel, BeforeACallNothingIsTouched) {
  const ts::ForwardArgs call = args();
  const std::atomic<int32_t> flag{1};
  ts::AttentionOptions options = this->options(0);
  options.cancel = &flag;
  for (const bool planned : {false, true}) {
    try {
      if (planned) {
        ts::plan_forward(call, options).run(call);
      } else {
        ts::forward(call, options);
      }
      FAIL() << "not cancelled";
    } catch (const ts::Error& error) {
      EXPECT_EQ(error.code(), ts::ErrorCode::cancelled);
      EXPECT_EQ(std::string(error.what()), std::string(planned ? "plan_run" : "forward") +
                                               ": the call was cancelled before it began; nothing was touched");
    }
  }
  for (const float value : out_) ASSERT_EQ(value, -7);
}

// What a call says whose flag another thread sets 5 ms later. call(flag) makes it.
template <typename F>
std::string cancelled_later(const F& call) {
  std::atomic<int32_t> flag{0};
  std::jthread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    flag = 1;
  });
  return call(flag);
}

// The same where the flag is set during the call: on a busy machine it may be before it begins, or after it ends.
template <typename F>
std::string cancelled_during(const F& call) {
  std::string said = "before it began";
  for (int tries = 0; tries < 50 && (said == "not cancelled" || said.find("before it began") != said.npos); ++tries) {
    said = cancelled_later(call);
  }
  return said;
}

std::string cancelled_during(const ts::ForwardArgs& args, ts::AttentionOptions options) {
  return cancelled_during([&](const std::atomic<int32_t>& flag) -> std::string {
    options.cancel = &flag;
    try {
      ts::forward(args, options);
    } catch (const ts::Error& error) {
      EXPECT_EQ(error.code(), ts::ErrorCode::cancelled);
      return error.what();
    }
    return "not cancelled";
  });
}

TEST_P(Cancel, DuringACallItEnds) {
  const ts::ForwardArgs call = args();
  for (const int threads : {1, 3}) {
    EXPECT_EQ(cancelled_during(call, options(threads)), "forward: the call was cancelled; its outputs hold no result");
  }
  // Nothing of it is left: the next call is as any other.
  const std::atomic<int32_t> flag{0};
  ts::ForwardArgs few = args();
  const auto input = ts::view(input_.data(), dtype(), {1, 4, heads(), kDim}, {0, kDim, 0, 1});
  few = {.q = input, .k = input, .v = input, .out = ts::view(out_.data(), ts::f32, {1, 4, heads(), kDim})};
  ts::AttentionOptions unset = options(0);
  unset.cancel = &flag;
  ts::forward(few, unset);
  EXPECT_EQ(out_[0], 0);
  EXPECT_EQ(out_[static_cast<size_t>(4 * heads() * kDim) - 1], 0);
}

// A few rows of one head, over keys that are all one.
TEST_P(Cancel, WithinAPieceOfWorkItEnds) {
  const int64_t keys = is_fast() ? int64_t{1} << 19 : int64_t{1} << 16;
  args();
  const auto q = ts::view(input_.data(), dtype(), {1, 16, 1, kDim});
  const auto kv = ts::view(input_.data(), dtype(), {1, keys, 1, kDim}, {0, 0, 0, 1});
  const ts::ForwardArgs call{.q = q, .k = kv, .v = kv, .out = ts::view(out_.data(), ts::f32, {1, 16, 1, kDim})};
  EXPECT_EQ(cancelled_during(call, options(1)), "forward: the call was cancelled; its outputs hold no result");
}

class CancelLinear : public EachKernel {};

// Rows of x and of w that are all one, on one thread and on more.
TEST_P(CancelLinear, DuringACallItEnds) {
  if (GetParam().is_on_gpu()) GTEST_SKIP() << "a GPU's kernels do not read the flag";
  if (GetParam().name == "cpu.linear_blas") GTEST_SKIP() << "a BLAS does not read the flag";
  constexpr int64_t kRows = 64, kColumns = 4096, kOut = int64_t{1} << 17;
  const int32_t dtype = GetParam().computes("f32") ? TESSELLA_F32 : TESSELLA_BF16;
  std::vector<float> input(kColumns), results(kRows * kOut, -7);
  const auto matrix = [](void* data, int32_t type, int64_t rows, int64_t columns, int64_t stride) {
    return tessella_tensor{.data = data, .dtype = type, .ndim = 2, .shape = {rows, columns}, .strides = {stride, 1}};
  };
  const tessella_tensor x = matrix(input.data(), dtype, kRows, kColumns, 0);
  const tessella_tensor w = matrix(input.data(), dtype, kOut, kColumns, 0);
  const tessella_tensor out = matrix(results.data(), TESSELLA_F32, kRows, kOut, kOut);
  tessella_linear_args args = TESSELLA_LINEAR_ARGS_INIT;
  args.x = &x, args.w = &w, args.out = &out;
  for (const int threads : {1, 3}) {
    const std::string said = cancelled_during([&](std::atomic<int32_t>& flag) -> std::string {
      tessella_linear_options options = TESSELLA_LINEAR_OPTIONS_INIT;
      options.kernel = GetParam().name.c_str();
      options.num_threads = threads;
      options.cancel = reinterpret_cast<const int32_t*>(&flag);
      const tessella_status status = tessella_linear(&args, &options, nullptr);
      if (status == TESSELLA_OK) return "not cancelled";
      EXPECT_EQ(status, TESSELLA_CANCELLED);
      return tessella_last_error();
    });
    EXPECT_EQ(said, "linear: the call was cancelled; its outputs hold no result");
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, CancelLinear, testing::ValuesIn(kernels_of("linear")), kernel_test_name);
INSTANTIATE_TEST_SUITE_P(Kernels, Cancel, testing::ValuesIn(kernels_of("forward")), kernel_test_name);

}  // namespace
}  // namespace tessella::tests
