// The spine knows no list of operations: it plans, runs, checks and explains one that lies outside the library.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>
#include <string>
#include <vector>

#include "api/call.hpp"
#include "core/choose.hpp"
#include "core/error.hpp"
#include "operations/merge/arguments.hpp"
#include "toy/twice.hpp"

namespace tessella::toy {
namespace {

class ToyOperation : public testing::Test {
 protected:
  tessella_tensor tensor(std::vector<float>& values, int64_t rows) {
    values.resize(static_cast<size_t>(2 * rows * 3));
    tessella_tensor t{};
    t.data = values.data();
    t.dtype = TESSELLA_F32;
    t.ndim = 4;
    std::copy_n(std::array<int64_t, 4>{1, rows, 2, 3}.begin(), 4, t.shape);
    std::copy_n(std::array<int64_t, 4>{6 * rows, 6, 3, 1}.begin(), 4, t.strides);
    return t;
  }
  TwiceArguments read(const TwiceOptions& options = Twice::kOptions) {
    x_ = tensor(from_, 5);
    out_ = tensor(into_, 5);
    std::iota(from_.begin(), from_.end(), 1.0f);
    args_ = {sizeof args_, &x_, &out_};
    return api::read<Twice>(&args_, options, "twice", nullptr);
  }
  static core::Plan plan(const TwiceArguments& a, core::ForcedKernel forced = {}) {
    const std::array tables{twice_kernels()};
    const TwiceShape bounds = Twice::bounds(a, Twice::kOptions);
    return core::choose(core::Shape::view(bounds), tables, forced, "twice");
  }
  template <typename Call>
  static std::string error_of(Call call) {
    try {
      call();
    } catch (const core::Error& error) {
      return error.what();
    }
    return "";
  }

  std::vector<float> from_, into_;
  tessella_tensor x_{}, out_{};
  TwiceArgs args_ = Twice::kArgs;
};

TEST_F(ToyOperation, IsPlannedAndRun) {
  const TwiceArguments a = read();
  const core::Plan made = plan(a);
  EXPECT_EQ(made.kernel->name, "toy.twice");
  EXPECT_EQ(made.workspace.scratch_bytes, 64 * 5);
  EXPECT_NE(made.explanation.find("rows=5 heads=2 head_dim=3"), std::string::npos) << made.explanation;
  api::run(made, &a, nullptr, nullptr, nullptr, "twice");
  for (size_t i = 0; i < into_.size(); ++i) EXPECT_EQ(into_[i], 2 * from_[i]);
}

TEST_F(ToyOperation, PlansOutliveTheShapesThatTheyWereMadeOf) {
  const TwiceArguments a = read();
  const core::Plan made = [&] {
    const TwiceShape shape = a;
    const std::array tables{twice_kernels()};
    return core::choose(core::Shape::view(shape), tables, {}, "twice");
  }();
  EXPECT_EQ(made.shape.as<TwiceShape>(), static_cast<const TwiceShape&>(a));
}

TEST_F(ToyOperation, CallsFitPlansByTheirFields) {
  TwiceArguments a = read();
  const core::Plan made = plan(a);
  const auto misfit = [&] { return error_of([&] { core::check_fits(made, core::Shape::view(a), "run"); }); };
  EXPECT_EQ(misfit(), "");
  a.rows = 4;
  EXPECT_EQ(misfit(), "");
  a.rows = 6;
  EXPECT_EQ(misfit(), "run: rows is 6, expected at most 5, the plan's bound");
  a.rows = 5;
  a.heads = 1;
  EXPECT_EQ(misfit(), "run: heads is 1, expected 2, what the plan was made for");
}

TEST_F(ToyOperation, ErrorsNameItsArguments) {
  read();
  const auto refusal = [&] { return error_of([&] { api::read<Twice>(&args_, Twice::kOptions, "twice", nullptr); }); };
  out_.flags = TESSELLA_READ_ONLY;
  EXPECT_EQ(refusal(), "twice: out is read-only, expected memory that may be written");
  out_.flags = 0;
  out_.shape[1] = 4;
  EXPECT_EQ(refusal().rfind("twice: out.shape[1] is 4, expected 5 = the rows of x", 0), 0u) << refusal();
  out_.shape[1] = 5;
  out_.data = x_.data;
  EXPECT_EQ(refusal(), "twice: out overlaps x, expected memory of its own");
  out_.data = into_.data();
  out_.strides[1] = 0;
  EXPECT_NE(refusal().find("twice: out has an axis of stride 0"), std::string::npos) << refusal();
  TwiceOptions options = Twice::kOptions;
  options.num_sms = 1;
  EXPECT_EQ(error_of([&] { read(options); }), "twice: option num_sms is for GPUs, and x is on the CPU");
}

TEST_F(ToyOperation, WorkspacesAndCancelledCalls) {
  TwiceArguments a = read();
  const core::Plan made = plan(a);
  tessella_workspace workspace{};
  const auto error = [&] { return error_of([&] { api::run(made, &a, &workspace, nullptr, nullptr, "twice"); }); };
  alignas(64) std::array<std::byte, 64 * 5> scratch{};
  workspace.scratch = scratch.data();
  workspace.scratch_bytes = scratch.size() - 1;
  EXPECT_EQ(error(), "twice: workspace.scratch has 319 bytes, expected 320");
  workspace.scratch_bytes = scratch.size();
  EXPECT_EQ(error(), "");
  a.into.data = scratch.data() + 16;
  EXPECT_EQ(error(), "twice: workspace.scratch overlaps out, expected memory of its own");
  const int32_t cancel = 1;
  a.cancel = &cancel;
  EXPECT_EQ(error(), "twice: the call was cancelled before it began; nothing was touched");
}

TEST_F(ToyOperation, RefusalsSayWhy) {
  TwiceArguments a = read();
  a.head_dim = 9;
  EXPECT_EQ(error_of([&] { plan(a); }), "twice: no kernel computes this call; toy.twice: head_dim is 9, at most 8");
  a.head_dim = 3;
  a.x.dtype = core::DType::f64;
  EXPECT_EQ(error_of([&] { plan(a); }), "twice: x.dtype is f64, and no  kernel on the CPU computes it, expected f32");
  EXPECT_NE(error_of([&] { plan(a, {"nobody"}); }).find("expected one of toy.twice"), std::string::npos);
}

TEST_F(ToyOperation, ShapesOfOtherOperationsAreNotMistaken) {
  const TwiceArguments a = read();
  const core::Plan made = plan(a);
  EXPECT_THROW(made.shape.as<core::MergeShape>(), core::Error);
}

}  // namespace
}  // namespace tessella::toy
