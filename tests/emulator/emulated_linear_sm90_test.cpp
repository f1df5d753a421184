// cuda.linear_sm90 in the emulator, as a call on a GPU runs it: by every way to share the work, with random cases,
// plans of more rows, scratch full of NaN and state that must be left zero. Its rungs of the ladder beside it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "api/call.hpp"
#include "cases/linear_call.hpp"
#include "cases/random.hpp"
#include "cases/tensor_elements.hpp"
#include "cuda/kernels/forward_sm80/config.hpp"
#include "cuda/kernels/linear_sm90/config.hpp"
#include "cuda/kernels/linear_sm90/recipe.hpp"
#include "emulated_step.hpp"
#include "late_memory.hpp"
#include "operations/linear/linear.hpp"

namespace tessella::tests {
namespace {

using portable::LinearSm90Config;
using MakeRecipe = cuda::Recipe (*)(const core::Shape& bounds, const cuda::DeviceInfo& device);

constexpr const char* kReference = "reference.linear";  // what the collector runs

// Sizes that one way serves on a GPU of so many multiprocessors. Calls of it share a kernel.
struct Sizes {
  const char* name;
  int num_sms;
  int64_t blocks;  // of 64 columns of out
  int64_t rows;    // the most
  bool swiglu, is_f16;
  // What the sizes are for.
  int32_t blocks_per_sm, cluster, row_blocks;
  bool streams;
};
void PrintTo(const Sizes& sizes, std::ostream* stream) { *stream << sizes.name; }
constexpr Sizes kSizes[] = {{"QuarterWave", 12, 3, 8, false, false, 1, 4, 1, false},
                            {"HalfWave", 6, 3, 16, false, true, 1, 2, 1, false},
                            {"Wave", 4, 4, 64, false, false, 2, 2, 1, false},
                            {"OddBlocks", 4, 7, 8, false, false, 2, 2, 2, false},
                            {"ThreeHalves", 2, 3, 32, false, false, 3, 2, 1, false},
                            {"TwoWaves", 2, 4, 8, false, false, 2, 2, 2, false},
                            {"ThreeWaves", 2, 6, 16, false, false, 3, 2, 2, false},
                            {"Stream", 3, 2, 8, false, false, 1, 1, 1, true},
                            {"LongStream", 2, 7, 64, false, false, 1, 1, 1, true},
                            {"RowTiles", 5, 3, 150, false, false, 1, 1, 1, true},
                            {"GatedHalfWave", 4, 1, 64, true, false, 1, 4, 2, false},
                            {"GatedWave", 4, 2, 8, true, true, 1, 2, 2, false},
                            {"GatedThreeHalves", 4, 3, 32, true, false, 3, 4, 2, false},
                            {"GatedTwoWaves", 3, 3, 16, true, false, 2, 2, 2, false},
                            {"GatedThreeWaves", 2, 3, 8, true, false, 3, 2, 2, false},
                            {"GatedStream", 7, 2, 64, true, false, 1, 1, 2, true}};

int32_t dtype_of(const Sizes& sizes) { return sizes.is_f16 ? TESSELLA_F16 : TESSELLA_BF16; }

core::LinearShape bounds_of(const core::LinearArguments& arguments, const LinearCase& c) {
  core::LinearShape bounds = arguments;
  bounds.rows = std::max(bounds.rows, c.max_rows);
  return bounds;
}

cuda::DeviceInfo gpu(int num_sms) {
  cuda::DeviceInfo device = cuda::typical_device(90);
  device.num_sms = num_sms;
  return device;
}

core::LinearArguments arguments_of(LinearCall& call) {
  const tessella_linear_args args = call.args();
  core::LinearArguments arguments = api::read<core::Linear>(&args, call.options(), "emulated", nullptr);
  arguments.device.type = core::DeviceType::cuda;  // for its alignments alone
  arguments.derive_shape();
  return arguments;
}

// "" or what is wrong. seed: of the emulator. All that the call does not promise to be there already the kernel before
// writes; what it may have read or written is written late too.
std::string run_linear(LinearCall& call, int num_sms, uint64_t seed,
                       MakeRecipe make_recipe = cuda::linear_sm90_recipe) {
  call.remember();
  const core::LinearArguments arguments = arguments_of(call);
  const core::LinearShape bounds = bounds_of(arguments, call.data());
  const cuda::DeviceInfo device = gpu(num_sms);
  const cuda::Recipe recipe = make_recipe(bounds, device);
  if (!recipe.ineligible.empty()) return recipe.ineligible;
  Memory state(static_cast<size_t>(recipe.workspace.state_bytes), Placement::guarded);
  Memory scratch(static_cast<size_t>(recipe.workspace.scratch_bytes + 63) / 64 * 64, Placement::guarded);
  std::fill_n(state.data(), state.size(), std::byte{0});
  std::fill_n(scratch.data(), scratch.size(), std::byte{0xFF});
  std::vector<Late> late;
  const tessella_linear_args args = call.args();
  for (const tessella_tensor* t : {args.x, args.out}) late.emplace_back(*t);
  if (args.residual != nullptr && args.residual != args.out) late.emplace_back(*args.residual);
  for (const tessella_tensor* t : {args.w, args.bias}) {
    if (t != nullptr && !arguments.weights_ready) late.emplace_back(*t);
  }
  for (const Memory* memory : {&state, &scratch}) late.emplace_back(memory->data(), memory->size());
  bool is_written = false;
  const auto write_late = [&] {
    for (const Late& of : late) of.write();
    is_written = true;
  };
  set_kernel_before(write_late);
  try {
    for (cuda::Step step : recipe.steps) {
      const auto launch =
          step.launch(bounds, &arguments, cuda::concurrency(step, bounds, device), {state.data(), scratch.data()});
      // Side by side in pairs, so that one block reads while the other writes; else one behind the other.
      step.blocks_wait = step.cluster == 1 && seed % 2 == 0;
      if (launch) run_step(step, *launch, seed);
    }
    if (!is_written) write_late();
    set_kernel_before(nullptr);
    finish(call);
  } catch (const std::exception& error) {
    set_kernel_before(nullptr);
    return error.what();
  }
  const auto is_zero = [](std::byte b) { return b == std::byte{0}; };
  return std::all_of(state.data(), state.data() + state.size(), is_zero) ? "" : "the state is not left zero";
}

std::string checked(const LinearCase& c, int num_sms) {
  LinearCall call(c);
  if (std::string wrong = run_linear(call, num_sms, c.seed); !wrong.empty()) return wrong + ", " + to_string(c);
  return call.check();
}

// A plan always has the sizes' most rows, because the kernel depends on them.
LinearCase base(const Sizes& sizes) {
  const int32_t dtype = dtype_of(sizes);
  return {.kernel = kReference,
          .dtype = dtype,
          .w_dtype = dtype,
          .out_dtype = dtype,
          .swiglu = sizes.swiglu,
          .rows = sizes.rows,
          .in_features = 1096,
          .out_features = sizes.blocks * 64 - 3,
          .max_rows = sizes.rows};
}

class EmulatedLinearSm90 : public testing::TestWithParam<Sizes> {};

TEST_P(EmulatedLinearSm90, HasTheWay) {
  const Sizes& sizes = GetParam();
  LinearCall call(base(sizes));
  const LinearSm90Config c = cuda::linear_sm90_config(bounds_of(arguments_of(call), call.data()), gpu(sizes.num_sms));
  EXPECT_EQ(c.blocks_per_sm, sizes.blocks_per_sm);
  EXPECT_EQ(c.cluster, sizes.cluster);
  EXPECT_EQ(c.row_blocks, sizes.row_blocks);
  EXPECT_EQ(c.streams, sizes.streams);
}

TEST_P(EmulatedLinearSm90, RandomCases) {
  const Sizes& sizes = GetParam();
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    LinearCase c =
        random_linear(kReference, sizes.is_f16 ? "f16" : "bf16", seed + 1000 * static_cast<uint64_t>(sizes.blocks));
    Random random(seed + 77);
    c.w_dtype = c.dtype;
    c.swiglu = sizes.swiglu;
    c.batch_invariant = false;
    c.plan = false;
    c.rows = random.chance(0.3) ? sizes.rows : random.in(1, sizes.rows);
    c.max_rows = sizes.rows;
    c.in_features = random.chance(0.3) ? 8 * random.in(1, 8) : 8 * random.in(1, 120);
    c.out_features = (sizes.blocks - 1) * 64 + random.in(1, 64);
    c.offset = random.chance(0.3) ? 8 : 0;
    c.gap = 8 * random.in(0, 2);
    ASSERT_EQ(checked(c, sizes.num_sms), "");
  }
}

// Whichever block, warp or copy is late.
TEST_P(EmulatedLinearSm90, EveryRunHasTheSameBits) {
  LinearCase c = base(GetParam());
  c.residual = true;
  LinearCall call(c);
  ASSERT_EQ(run_linear(call, GetParam().num_sms, 1), "");
  ASSERT_EQ(call.check(), "");
  const std::vector<std::byte> first = call.results();
  for (uint64_t seed = 2; seed <= 6; ++seed) {
    ASSERT_EQ(run_linear(call, GetParam().num_sms, seed), "");
    ASSERT_EQ(call.results(), first) << seed;
  }
}

// NaN and infinities of a row of x or of w reach the elements that are computed from it, and no other.
TEST_P(EmulatedLinearSm90, NotFinite) {
  for (const double value : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    for (const bool in_x : {true, false}) {
      LinearCase c = base(GetParam());
      c.rows = 5;
      c.in_features = 200;
      LinearCall call(c);
      const tessella_tensor& t = in_x ? call.x() : call.w();
      set(t, 3 * t.strides[0] + 70, value);
      ASSERT_EQ(run_linear(call, GetParam().num_sms, 1), "");
      ASSERT_EQ(call.check(), "");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, EmulatedLinearSm90, testing::ValuesIn(kSizes),
                         [](const auto& info) { return std::string(info.param.name); });

struct Rung {
  const char* name;
  MakeRecipe recipe;
  const char* difference;  // from cuda.linear_sm90
};
void PrintTo(const Rung& rung, std::ostream* stream) { *stream << rung.name; }

class EmulatedLinearRung : public testing::TestWithParam<Rung> {};

// Neither fewer stages nor padding change the order of sums.
TEST_P(EmulatedLinearRung, HasTheBitsOfLinearSm90) {
  for (const Sizes& sizes : kSizes) {
    const std::string name = sizes.name;
    if (name != "HalfWave" && name != "Stream" && name != "GatedStream") continue;
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      LinearCase c = base(sizes);
      c.weights_ready = seed % 2 == 0;
      c.rows = seed <= 2 ? sizes.rows : static_cast<int64_t>(seed);
      c.in_features = seed <= 4 ? 1096 : 8;
      c.seed = seed;
      LinearCall expected(c), call(c);
      ASSERT_EQ(run_linear(expected, sizes.num_sms, seed), "");
      ASSERT_EQ(run_linear(call, sizes.num_sms, seed, GetParam().recipe), "");
      ASSERT_EQ(call.check(), "");
      ASSERT_EQ(call.results(), expected.results()) << to_string(c);
    }
  }
}

TEST_P(EmulatedLinearRung, SaysItsDifference) {
  LinearCall call(base(kSizes[0]));
  const core::LinearArguments arguments = arguments_of(call);
  const std::string description = GetParam().recipe(arguments, gpu(12)).description;
  EXPECT_NE(description.find(GetParam().difference), std::string::npos) << description;
}

INSTANTIATE_TEST_SUITE_P(Rungs, EmulatedLinearRung,
                         testing::Values(Rung{"OneStage", cuda::linear_one_stage_recipe, ", 1 stage of "},
                                         Rung{"TwoStages", cuda::linear_two_stages_recipe, ", 2 stages of "},
                                         Rung{"Padded", cuda::linear_padded_recipe, " and 64 of x, "}),
                         [](const auto& info) { return std::string(info.param.name); });

// A row has the bits that it has alone, whatever the plan's rows and the GPU are.
TEST(EmulatedLinearSm90Rows, BatchInvariant) {
  for (const bool swiglu : {false, true}) {
    LinearCase c{.kernel = kReference,
                 .dtype = TESSELLA_BF16,
                 .w_dtype = TESSELLA_BF16,
                 .out_dtype = TESSELLA_BF16,
                 .swiglu = swiglu,
                 .batch_invariant = true,
                 .rows = 70,
                 .in_features = 1536,
                 .out_features = 72};
    LinearCall all(c);
    ASSERT_EQ(run_linear(all, 132, 1), "");
    ASSERT_EQ(all.check(), "");
    for (const auto& [rows, num_sms] : {std::pair{1, 132}, std::pair{8, 3}, std::pair{9, 132}, std::pair{33, 1}}) {
      c.rows = rows;
      LinearCall call(c);
      std::memcpy(call.x().data, all.x().data, static_cast<size_t>(c.rows * c.in_features * size_of(c.dtype)));
      ASSERT_EQ(run_linear(call, num_sms, 2), "");
      ASSERT_EQ(
          std::memcmp(call.out().data, all.out().data, static_cast<size_t>(c.rows * c.out_features * size_of(c.dtype))),
          0)
          << rows;
    }
  }
}

// What the choice of blocks for batch_invariant depends on.
TEST(EmulatedLinearSm90Rows, BatchInvariantConfigs) {
  for (const int64_t out_features : {64, 500, 4096, 8192, 11008, 12288, 100000}) {
    LinearCase c{.kernel = kReference,
                 .dtype = TESSELLA_BF16,
                 .w_dtype = TESSELLA_BF16,
                 .out_dtype = TESSELLA_BF16,
                 .batch_invariant = true,
                 .in_features = 64};
    LinearCall call(c);
    core::LinearShape shape = arguments_of(call);
    shape.out_features = out_features;
    const LinearSm90Config first = cuda::linear_sm90_config(shape, gpu(132));
    EXPECT_FALSE(first.streams);
    for (const int num_sms : {1, 78, 132, 144}) {
      for (const int64_t rows : {1, 40, 64, 1000}) {
        shape.rows = rows;
        const LinearSm90Config other = cuda::linear_sm90_config(shape, gpu(num_sms));
        EXPECT_EQ(other.cluster, first.cluster);
        EXPECT_EQ(other.panels, first.panels);
        EXPECT_EQ(other.streams, first.streams);
        EXPECT_LE(portable::shared_bytes(other), portable::shared_bytes_of(other.blocks_per_sm));
      }
    }
  }
}

TEST(EmulatedLinearSm90Rows, Ineligible) {
  const LinearCase c{
      .kernel = kReference, .dtype = TESSELLA_BF16, .w_dtype = TESSELLA_BF16, .out_dtype = TESSELLA_BF16};
  const auto reason = [&](const LinearCase& of, int num_sms = 0) {
    LinearCall call(of);
    core::LinearShape shape = arguments_of(call);
    shape.num_sms = num_sms;
    return cuda::linear_sm90_recipe(shape, gpu(132)).ineligible;
  };
  EXPECT_EQ(reason(c), "");
  LinearCase other = c;
  other.offset = 4;
  EXPECT_EQ(reason(other),
            "the copy engine reads rows of whole pieces of 16 bytes that start at multiples of 16; x and w are aligned "
            "to 8 bytes, in_features is 64");
  other = c;
  other.in_features = 60;
  other.gap = 4;
  EXPECT_NE(reason(other), "");
  EXPECT_EQ(reason(c, 100), "");  // by equal shares
  other = c;
  other.batch_invariant = true;
  EXPECT_EQ(reason(other, 100), "with batch_invariant leaves no multiprocessor free, and num_sms is 100 of 132");
}

}  // namespace
}  // namespace tessella::tests
