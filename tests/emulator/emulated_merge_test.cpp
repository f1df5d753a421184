// cuda.merge in the emulator, as a call on a GPU runs it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>
#include <string>

#include "api/call.hpp"
#include "cases/merge_call.hpp"
#include "cuda/kernels/forward_sm80/config.hpp"
#include "cuda/kernels/merge/recipe.hpp"
#include "emulated_step.hpp"
#include "operations/merge/merge.hpp"

namespace tessella::tests {
namespace {

// Runs the steps; the alignments are those of a call on a GPU. max_seqlen: of the plan.
std::string run_merge(MergeCall& call, const MergeCase& c, int64_t max_seqlen = 0) {
  tessella_merge_args args = call.args();
  const size_t last = call.outs().size() - 1;
  if (c.in_place) {
    args.out = &call.outs()[last];
    if (c.lse) args.lse = &call.lses()[last];
  }
  call.remember();
  core::MergeArguments arguments = api::read<core::Merge>(&args, call.options(), "emulated", nullptr);
  arguments.device.type = core::DeviceType::cuda;  // for its alignments alone
  arguments.derive_shape();
  core::MergeShape bounds = arguments;
  bounds.seqlen = std::max(bounds.seqlen, max_seqlen);
  cuda::DeviceInfo device = cuda::typical_device(90);
  device.num_sms = 1;
  const cuda::Recipe recipe = cuda::merge_recipe(bounds, device);
  if (!recipe.ineligible.empty()) return recipe.ineligible;
  Memory scratch(static_cast<size_t>(recipe.workspace.scratch_bytes + 63) / 64 * 64, Placement::guarded);
  std::fill_n(scratch.data(), scratch.size(), std::byte{0xFF});
  try {
    for (const cuda::Step& step : recipe.steps) {
      const auto launch =
          step.launch(bounds, &arguments, cuda::concurrency(step, bounds, device), {nullptr, scratch.data()});
      if (launch) run_step(step, *launch, c.seed);
    }
    finish(call);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

void expect_right(const MergeCase& c, int64_t max_seqlen = 0) {
  MergeCall call(c);
  ASSERT_EQ(run_merge(call, c, max_seqlen), "") << to_string(c);
  ASSERT_EQ(call.check(), "");
}

TEST(EmulatedMerge, RandomCases) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    MergeCase c = random_merge("", "f32 bf16 f16", seed);
    c.plan = false;
    expect_right(c, seed % 3 == 0 ? 64 : 0);
    if (testing::Test::HasFatalFailure()) return;
  }
}

// More rows than the blocks of the GPU have at once, and rows with more pieces than a warp has threads.
TEST(EmulatedMerge, ManyRowsAndPieces) {
  for (const int32_t dtype : {TESSELLA_F32, TESSELLA_BF16}) {
    expect_right({.dtype = dtype, .out_dtype = dtype, .num_states = 2, .seqlen = 700, .heads = 3, .head_dim = 8});
    expect_right({.dtype = dtype, .out_dtype = dtype, .num_states = 3, .seqlen = 9, .heads = 3, .head_dim = 776});
  }
}

// 33 states are two steps, 70 three; a row may have keys in the first step's states alone, or in the last one's.
TEST(EmulatedMerge, StepsOf32States) {
  for (const int32_t states : {31, 32, 33, 64, 65, 70}) {
    for (const double empty : {0.0, 0.97}) {
      expect_right({.dtype = TESSELLA_BF16,
                    .out_dtype = TESSELLA_BF16,
                    .num_states = states,
                    .batch = 2,
                    .seqlen = 20,
                    .heads = 3,
                    .empty = empty});
    }
  }
}

// out and lse are those of the last state; a state alone is copied, -0 too.
TEST(EmulatedMerge, InPlaceAndAlone) {
  for (const int32_t states : {1, 3, 34}) {
    const MergeCase apart{.num_states = states, .batch = 2, .seqlen = 9, .heads = 3};
    MergeCall expected(apart);
    ASSERT_EQ(run_merge(expected, apart), "");
    ASSERT_EQ(expected.check(), "");
    MergeCase c = apart;
    c.in_place = true;
    MergeCall call(c);
    ASSERT_EQ(run_merge(call, c), "");
    for (int64_t row = 0; row < c.seqlen; ++row) {
      ASSERT_EQ(std::memcmp(call.at(-1, 1, row, 2, 0), expected.at(-1, 1, row, 2, 0), 64 * sizeof(float)), 0);
    }
    ASSERT_EQ(call.results(), expected.results());
  }
  const MergeCase c{.num_states = 1, .seqlen = 3, .empty = 0};
  MergeCall call(c);
  const float minus_zero = -0.0F;
  std::memcpy(call.at(0, 0, 1, 0, 5), &minus_zero, sizeof minus_zero);
  ASSERT_EQ(run_merge(call, c), "");
  ASSERT_EQ(std::memcmp(call.at(-1, 0, 1, 0, 0), call.at(0, 0, 1, 0, 0), 64 * sizeof(float)), 0);
  ASSERT_EQ(std::memcmp(call.at(-1, 0, 1, 0, -1), call.at(0, 0, 1, 0, -1), sizeof(float)), 0);
}

TEST(EmulatedMerge, ExtremeLses) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float extreme : {3e38F, -3e38F, kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    const MergeCase c{.num_states = 3, .seqlen = 5, .empty = 0};
    MergeCall call(c);
    std::memcpy(call.at(1, 0, 2, 0, -1), &extreme, sizeof extreme);
    ASSERT_EQ(run_merge(call, c), "");
    ASSERT_EQ(call.check(), "") << extreme;
  }
}

}  // namespace
}  // namespace tessella::tests
