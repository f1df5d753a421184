// Random cases of decoding in the emulator: splits, schedules, and all that the kernel reads at run time.
#include <gtest/gtest.h>

#include <utility>

#include "api/call.hpp"
#include "cuda/kernels/forward_sm80/config.hpp"
#include "emulated_decode_case.hpp"
#include "operations/attention/attention.hpp"

namespace tessella::tests {
namespace {

constexpr uint64_t kGroups = 6, kCasesOfGroup = 30;
constexpr uint64_t kUnified = kGroups;  // the group of the other kernel

class EmulatedRandomDecode : public testing::TestWithParam<uint64_t> {};

TEST_P(EmulatedRandomDecode, IsRight) {
  const bool is_unified = GetParam() == kUnified;
  const int compiled = is_unified ? 4 : 8;
  const uint64_t first = GetParam() * kCasesOfGroup, count = is_unified ? kCasesOfGroup / 2 : kCasesOfGroup;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    Case c = random_decode_case(seed, is_unified ? "cuda.decode_unified_max" : "cuda.decode", "bf16 f16 f32", compiled);
    c.kernel = "";
    c.seqlen_kv /= seed % 8 == 0 ? 1 : 4;
    Gpu gpu{.num_sms = static_cast<int>(2 + seed % 41), .num_splits = static_cast<int>(c.num_splits), .few = c.few};
    c.few = false;  // the GPU's alone; the call's are those of the CPU
    c.num_splits = 0;
    if (is_unified) gpu.num_splits = static_cast<int>(seed % 13);
    // As many queries as keys are another kernel's, where nothing asks for splits.
    if (!gpu.few && c.seqlen_q > 8 && gpu.num_splits < 2) gpu.num_splits = 2;
    if (!gpu.few && seed % 3 == 0) {
      gpu.scheduled = true;
      gpu.num_splits = 0;
    }
    expect_decoded(c, gpu, is_unified ? cuda::decode_unified_max_recipe : cuda::decode_recipe, 1);
    if (HasFailure()) return;
  }
}

// What random_test runs on a GPU.
TEST(RandomDecode, EveryOneIsEligible) {
  const std::pair<const char*, MakeRecipe> kernels[] = {{"cuda.decode", cuda::decode_recipe},
                                                        {"cuda.decode_unified_max", cuda::decode_unified_max_recipe}};
  for (const auto& [kernel, recipe] : kernels) {
    for (uint64_t seed = 0; seed < 400; ++seed) {
      const Case c = random_decode_case(seed, kernel, "f32 bf16 f16");
      const Call call(c);
      core::AttentionArguments p = api::read<core::Forward>(&call.args(), call.options(), "random", nullptr);
      for (const core::Name name : core::kNames) p.operands[name].alignment = 16;
      for (const int arch : {80, 90}) ASSERT_EQ(recipe(p, cuda::typical_device(arch)).ineligible, "") << to_string(c);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, EmulatedRandomDecode, testing::Range(uint64_t{0}, kUnified + 1));

}  // namespace
}  // namespace tessella::tests
