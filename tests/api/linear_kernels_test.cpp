// linear at the ends of its ranges, on every kernel that reads the host's memory.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "cases/kernels.hpp"
#include "cases/linear_call.hpp"
#include "cases/small_append.hpp"
#include "cases/small_linear.hpp"
#include "tessella/tessella.h"

namespace {

using namespace tessella::tests;
using Args = tessella_linear_args;

class LinearKernels : public EachKernel {
 protected:
  void SetUp() override {
    EachKernel::SetUp();
    if (IsSkipped()) return;
    if (GetParam().is_on_gpu()) GTEST_SKIP() << "its memory is a GPU's";
    if (!GetParam().computes("f32")) GTEST_SKIP() << "does not compute f32";
    if (GetParam().name == "cpu.linear_blas") GTEST_SKIP() << "takes many rows alone";
  }
  static LinearCase named(LinearCase c) {
    c.kernel = GetParam().name;
    return c;
  }
  static std::vector<LinearCase> each_case() { return {named(kPlain), named(kStored), named(kSwiglu)}; }
};

// Sizes and strides at the ends of their ranges, one at a time: an error or a result, never a crash.
TEST_P(LinearKernels, NoNumberCrashes) {
  const int64_t numbers[] = {std::numeric_limits<int64_t>::min(),
                             -1,
                             0,
                             1,
                             2,
                             kMostRows,
                             kMostRows + 1,
                             int64_t{1} << 40,
                             kMost / 2 + 1,
                             kMost};
  for (const LinearCase& c : each_case()) {
    for (int tensor = 0; tensor < 6; ++tensor) {
      for (int member = 0; member < 4; ++member) {
        for (const int64_t number : numbers) {
          LinearCall call(c);
          const Args args = call.args();
          const tessella_tensor* of[] = {args.x, args.w, args.w_scale, args.bias, args.residual, args.out};
          if (of[tensor] == nullptr) continue;
          tessella_tensor& t = edit(of[tensor]);
          if (member < 2 && number > t.shape[member]) t.data = nullptr;  // what is there is smaller
          if (member >= 2 && number > t.strides[member - 2]) t.data = nullptr;
          (member < 2 ? t.shape[member] : t.strides[member - 2]) = number;
          const tessella_call tagged{sizeof tagged, TESSELLA_LINEAR, &args, &call.options()};
          tessella_linear(&args, &call.options(), nullptr);
          tessella_plan* plan = nullptr;
          t.device_type = TESSELLA_CPU;
          if (tessella_plan_make(&tagged, &plan) == TESSELLA_OK) tessella_plan_run(plan, &tagged, nullptr, nullptr);
          tessella_plan_free(plan);
        }
      }
    }
    for (const int64_t number : numbers) {
      LinearCall call(c);
      const Args args = call.args();
      call.options().max_rows = number;
      const tessella_call tagged{sizeof tagged, TESSELLA_LINEAR, &args, &call.options()};
      tessella_plan* plan = nullptr;
      const bool is_bound = number == 0 || (number >= c.rows && number <= kMostRows);
      EXPECT_EQ(tessella_plan_make(&tagged, &plan) == TESSELLA_OK, is_bound) << number;
      tessella_plan_free(plan);
    }
  }
}

// A plan's arithmetic holds for the largest calls, whose memory nobody has.
TEST_P(LinearKernels, PlansOfTheLargestSizes) {
  for (const auto& [rows, in, out] : {std::array{int64_t{1} << 30, int64_t{1} << 30, int64_t{1} << 30},
                                      {kMostRows, int64_t{1}, int64_t{2}},
                                      {int64_t{1}, kMostRows, int64_t{2}},
                                      {int64_t{1}, int64_t{1}, kMostRows - 1}}) {
    for (const bool is_swiglu : {false, true}) {
      LinearCall call(named(kSwiglu));
      Args args = call.args();
      args.residual = nullptr;
      call.options().activation = is_swiglu ? TESSELLA_SWIGLU : TESSELLA_ACTIVATION_NONE;
      const auto set = [](const tessella_tensor* t, int64_t r, int64_t columns) {
        edit(t).data = nullptr;
        edit(t).device_type = TESSELLA_CPU;
        edit(t).shape[0] = r;
        edit(t).shape[1] = edit(t).strides[0] = columns;
      };
      set(args.x, rows, in);
      set(args.w, out, in);
      set(args.out, rows, is_swiglu ? out / 2 : out);
      const tessella_call tagged{sizeof tagged, TESSELLA_LINEAR, &args, &call.options()};
      tessella_plan* plan = nullptr;
      EXPECT_EQ(tessella_plan_make(&tagged, &plan), TESSELLA_OK) << tessella_last_error();
      tessella_plan_free(plan);
    }
  }
}

// Without rows nothing is read or written, whatever memory there is.
TEST_P(LinearKernels, RowsMayBeNone) {
  for (LinearCase c : each_case()) {
    c.rows = 0;
    LinearCall call(c);
    Args args = call.args();
    edit(args.x).data = edit(args.out).data = nullptr;
    if (args.residual != nullptr) edit(args.residual).data = nullptr;
    const tessella_call tagged{sizeof tagged, TESSELLA_LINEAR, &args, &call.options()};
    EXPECT_EQ(tessella_linear(&args, &call.options(), nullptr), TESSELLA_OK) << tessella_last_error();
    tessella_check_report report = TESSELLA_CHECK_REPORT_INIT;
    EXPECT_EQ(tessella_check(&tagged, 0, 0, &report), TESSELLA_OK) << tessella_last_error();
    EXPECT_EQ(report.rows, 0);
    EXPECT_EQ(report.passed, 1);
  }
}

// Inputs may be any views: rows that are one, weights and scales that share memory.
TEST_P(LinearKernels, InputsMayRepeat) {
  LinearCall call(named(kPlain));
  call.x().strides[0] = 0;
  call.w().strides[0] = 4;
  EXPECT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();
  EXPECT_EQ(call.check(), "");
  LinearCall stored(named(kStored));
  edit(stored.args().w_scale).strides[0] = 0;
  EXPECT_EQ(stored.run(), TESSELLA_OK) << tessella_last_error();
  EXPECT_EQ(stored.check(), "");
}

TEST_P(LinearKernels, OneRowHasAnyStride) {
  LinearCase c = named(kPlain);
  c.rows = 1;
  c.in_place = true;
  LinearCall call(c);
  call.x().strides[0] = call.out().strides[0] = 0;
  EXPECT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();
  EXPECT_EQ(call.check(), "");
}

TEST_P(LinearKernels, WorkspaceIsTheCallers) {
  for (const LinearCase& c : each_case()) {
    LinearCall call(c);
    const Args args = call.args();
    const tessella_call tagged{sizeof tagged, TESSELLA_LINEAR, &args, &call.options()};
    tessella_plan* plan = nullptr;
    ASSERT_EQ(tessella_plan_make(&tagged, &plan), TESSELLA_OK) << tessella_last_error();
    size_t state = 0, scratch = 0;
    ASSERT_EQ(tessella_plan_workspace(plan, &state, &scratch), TESSELLA_OK);
    alignas(64) static std::byte memory[1 << 20];
    ASSERT_LE(state + scratch, sizeof memory - 64);
    const tessella_workspace workspace{memory, state, memory + (state + 63) / 64 * 64, scratch};
    ASSERT_EQ(tessella_plan_initialize(plan, &workspace, nullptr), TESSELLA_OK) << tessella_last_error();
    call.remember();
    ASSERT_EQ(tessella_plan_run(plan, &tagged, &workspace, nullptr), TESSELLA_OK) << tessella_last_error();
    EXPECT_EQ(call.check(), "");
    tessella_plan_free(plan);
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, LinearKernels, testing::ValuesIn(kernels_of("linear")), kernel_test_name);

}  // namespace
