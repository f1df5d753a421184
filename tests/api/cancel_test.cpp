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

// What a call says whose flag another thread sets 5 ms later.
std::string cancelled_later(const ts::ForwardArgs& call, ts::AttentionOptions options) {
  std::atomic<int32_t> flag{0};
  options.cancel = &flag;
  std::jthread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    flag = 1;
  });
  try {
    ts::forward(call, options);
  } catch (const ts::Error& error) {
    EXPECT_EQ(error.code(), ts::ErrorCode::cancelled);
    return error.what();
  }
  return "not cancelled";
}

// The same where the flag is set during the call: on a busy machine it may be before it begins, or after it ends.
std::string cancelled_during(const ts::ForwardArgs& call, const ts::AttentionOptions& options) {
  std::string said = "before it began";
  for (int tries = 0; tries < 50 && (said == "not cancelled" || said.find("before it began") != said.npos); ++tries) {
    said = cancelled_later(call, options);
  }
  return said;
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

INSTANTIATE_TEST_SUITE_P(Kernels, Cancel, testing::ValuesIn(kernels_of("forward")), kernel_test_name);

}  // namespace
}  // namespace tessella::tests
