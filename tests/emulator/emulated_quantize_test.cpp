// cuda.quantize and cuda.dequantize in the emulator, as calls on a GPU run them.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "api/call.hpp"
#include "cases/quantize_call.hpp"
#include "cases/random.hpp"
#include "cuda/kernels/forward_sm80/config.hpp"
#include "cuda/kernels/quantize/recipe.hpp"
#include "emulated_step.hpp"
#include "operations/quantize/quantize.hpp"

namespace tessella::tests {
namespace {

cuda::DeviceInfo small_gpu() {
  cuda::DeviceInfo device = cuda::typical_device(90);
  device.num_sms = 1;
  return device;
}

// The steps of a call on a GPU, for its alignments; the plan is of the same shape.
std::string run_steps(core::QuantizeArguments arguments,
                      cuda::Recipe (*recipe_of)(const core::Shape&, const cuda::DeviceInfo&), uint64_t seed) {
  arguments.device.type = core::DeviceType::cuda;
  arguments.derive_shape();
  const core::Shape bounds = core::shape(&arguments);
  const cuda::Recipe recipe = recipe_of(bounds, small_gpu());
  if (!recipe.ineligible.empty()) return recipe.ineligible;
  std::vector<float> scratch(static_cast<size_t>(recipe.workspace.scratch_bytes) / sizeof(float),
                             std::numeric_limits<float>::quiet_NaN());
  try {
    for (const cuda::Step& step : recipe.steps) {
      const core::Workspace workspace{.scratch = scratch.data()};
      const auto launch = step.launch(bounds, &arguments, cuda::concurrency(step, bounds, small_gpu()), workspace);
      if (launch) run_step(step, *launch, seed);
    }
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

std::string quantize(QuantizeCall& call) {
  return run_steps(api::read<core::Quantize>(&call.args(), call.options(), "emulated", nullptr), cuda::quantize_recipe,
                   call.data().seed);
}
std::string dequantize(QuantizeCall& call) {
  return run_steps(api::read<core::Dequantize>(&call.back_args(), call.back_options(), "emulated", nullptr),
                   cuda::dequantize_recipe, call.data().seed);
}

TEST(EmulatedQuantize, RandomCases) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const QuantizeCase c = random_quantize_of_few("", seed);
    QuantizeCall call(c);
    call.remember();
    ASSERT_EQ(quantize(call), "") << to_string(c);
    finish(call);
    ASSERT_EQ(call.check(), "");
    call.remember();
    ASSERT_EQ(dequantize(call), "") << to_string(c);
    finish_back(call);
    ASSERT_EQ(call.check_back(), "");
  }
}

// Elements, scales, means, shifts and numbers.
TEST(EmulatedQuantize, BitsAreThoseOfTheCpu) {
  for (uint64_t seed = 1; seed <= 160; ++seed) {
    QuantizeCase c = random_quantize_of_few("", seed);
    QuantizeCall emulated(c);
    emulated.remember();
    ASSERT_EQ(quantize(emulated), "") << to_string(c);
    ASSERT_EQ(dequantize(emulated), "") << to_string(c);
    finish(emulated);
    finish_back(emulated);
    c.kernel = "cpu.quantize";
    QuantizeCall call(c);
    ASSERT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();
    ASSERT_EQ(call.run_back("cpu.dequantize"), TESSELLA_OK) << tessella_last_error();
    const std::vector<std::byte> got = emulated.results(), expected = call.results();
    const auto [at, of_cpu] = std::ranges::mismatch(got, expected);
    ASSERT_EQ(at - got.begin(), std::ssize(expected)) << "the first byte that differs; " << to_string(c);
  }
}

// Rows of every number of lanes and columns of a lane.
TEST(EmulatedQuantize, HeadDims) {
  for (const int64_t head_dim : {1, 7, 48, 256, 272, 576, 1024}) {
    for (const bool transposed : {false, true}) {
      const QuantizeCase c{.dtype = TESSELLA_BF16,
                           .seqlen = 40,
                           .head_dim = head_dim,
                           .transposed = transposed,
                           .hadamard = head_dim % 16 == 0};
      QuantizeCall call(c);
      call.remember();
      ASSERT_EQ(quantize(call), "") << to_string(c);
      finish(call);
      ASSERT_EQ(call.check(), "");
      call.remember();
      ASSERT_EQ(dequantize(call), "") << to_string(c);
      finish_back(call);
      ASSERT_EQ(call.check_back(), "");
    }
  }
}

// More rows and chunks than the blocks of the GPU have at once.
TEST(EmulatedQuantize, ManyRows) {
  for (const bool packed : {false, true}) {
    const QuantizeCase c{.dtype = TESSELLA_BF16,
                         .scale = "bh",
                         .batch = 3,
                         .seqlen = 300,
                         .heads = 3,
                         .packed = packed,
                         .hadamard = true,
                         .smooth = true};
    QuantizeCall call(c);
    call.remember();
    ASSERT_EQ(quantize(call), "") << to_string(c);
    finish(call);
    ASSERT_EQ(call.check(), "");
  }
}

int32_t hostile(Random& random) {
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max(), kLeast = std::numeric_limits<int32_t>::min();
  const int32_t values[] = {kLeast, kLeast + 1, -1000, -2, -1, 0, 1, 2, 3, 5, 17, 40, 41, 1000, kMost - 1, kMost};
  return random.chance(0.2) ? static_cast<int32_t>(random.bits()) : random.one_of(values);
}

// Whatever tables hold, nothing but elements of outputs is written, and nothing outside is read.
TEST(EmulatedQuantize, HostileTables) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    QuantizeCase c = random_quantize_of_few("", seed);
    c.guard = seed % 2 == 0;
    QuantizeCall call(c);
    const core::QuantizeArguments arguments =
        api::read<core::Quantize>(&call.args(), call.options(), "emulated", nullptr);
    Random random(seed);
    for (const tessella_tensor* table : {call.args().cu_seqlens, call.args().rotary_offsets}) {
      if (table == nullptr) continue;
      for (int64_t i = 0; i < table->shape[0]; ++i) {
        if (random.chance(0.5)) static_cast<int32_t*>(table->data)[i] = hostile(random);
      }
    }
    call.remember();
    ASSERT_EQ(run_steps(arguments, cuda::quantize_recipe, seed), "") << to_string(c);
    ASSERT_EQ(call.check_bounds(), "") << to_string(c);
  }
}

}  // namespace
}  // namespace tessella::tests
