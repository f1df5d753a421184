// The kernel matrix of backward_sm80 and backward_sm90.
#include <gtest/gtest.h>

#include <cstddef>
#include <iterator>
#include <span>
#include <string>

#include "cuda/compile/cubin_store.hpp"
#include "cuda/compile/nvrtc.hpp"
#include "cuda/kernels/backward_sm80/recipe.hpp"
#include "cuda/kernels/backward_sm90/recipe.hpp"
#include "cuda/kernels/forward_sm80/config.hpp"
#include "gpu/kernel_matrix.hpp"
#include "operations/attention/arguments.hpp"

namespace tessella::kernel_matrix {
namespace {

using namespace cuda;

// backward_sm90: as the forward, its registers and the assembler's notes. Features of wide rows and element masks may
// spill a few values, those of the loading warp among them; of narrow rows a bias beside a dense mask may.
TEST(KernelMatrixBackwardSm90, CompilesWithoutSpillsOrWaits) {
  if (nvrtc() == nullptr) GTEST_SKIP() << nvrtc_problem();
  CubinStore store(TESSELLA_TEST_CACHE, nvrtc());
  // The first ones always, the others with --full.
  const core::Features sets[] = {{},
                                 Feature::bias | Feature::dropout | Feature::alibi,
                                 Feature::dense_mask | Feature::bias,
                                 Feature::query_ranges,
                                 Feature::softcap,
                                 Feature::alibi,
                                 Feature::bias,
                                 Feature::dropout,
                                 Feature::score_mod,
                                 Feature::softcap | Feature::bias,
                                 Feature::softcap | Feature::dropout,
                                 Feature::document,
                                 Feature::key_ranges,
                                 Feature::block_map | Feature::mask_mod | Feature::dropout};
  constexpr size_t kAlways = 4;
  const HeadDims all_dims[] = {{64, 64}, {128, 128}, {192, 128}, {256, 256}};
  for (const HeadDims& dims : all_dims) {
    for (const core::Features features : std::span(sets).first(g_full ? std::size(sets) : kAlways)) {
      AttentionArguments p = sm90_problem(dims.qk, dims.v, 4096, DType::bf16);
      p.features = features;
      p = backward(p);
      if (features.has(Feature::score_mod)) {
        p.score_mod = "return score - arrays.f32(0)[h] * fabsf(q_minus_k);";
        p.score_mod_gradient = "return d_score;";
      }
      if (features.has(Feature::mask_mod)) p.mask_mod = "return k <= q + 30;";
      // A bias of either type, and narrow heads with gradients of slopes and without: with them dQ is apart.
      const bool has_slopes = features.has(Feature::alibi) && dims.qk <= 128;
      for (const bool is_other : {false, true}) {
        if (is_other && !features.has(Feature::bias) && !has_slopes) continue;
        p.bias_dtype = is_other ? DType::f32 : DType::bf16;
        if (is_other) p.features = p.features.without(Feature::d_alibi_slopes);
        const bool is_tight = dims.qk > 64 && !features.empty();
        const bool is_masked_and_biased = features.has(Feature::dense_mask) && features.has(Feature::bias);
        const int of_narrow = is_masked_and_biased ? 8 : 0;
        expect_lean(store, p, "backward", backward_sm90_recipe, is_tight ? 64 : of_narrow);
      }
    }
  }
}

// backward_sm80: every feature at one size, and nothing or everything at every size.
class KernelMatrixBackward : public testing::TestWithParam<int> {};

TEST_P(KernelMatrixBackward, CompilesWithoutSpills) {
  if (nvrtc() == nullptr) GTEST_SKIP() << nvrtc_problem();
  CubinStore store(TESSELLA_TEST_CACHE, nvrtc());
  size_t idx = 0;
  for (const Row& row : rows()) {
    const HeadDims& dims = kHeadDims[row.dims_idx];
    const FeatureSet& set = kFeatureSets[row.set_idx];
    const bool is_forwards = !set.features.empty() && set.features.without(core::kForwardOnlyFeatures).empty();
    if (dims.qk > 256 || dims.v > 256 || set.batch_invariant || is_forwards) {
      continue;
    }
    // f16 differs from bf16 by one instruction, and Ada from Ampere by its shared memory.
    const bool is_usual = row.dtype_idx != 1 && kArchs[row.arch_idx] != 89;
    if (g_full ? !is_representative(row) && (row.dtype_idx != 0 || !row.is_aligned || !is_usual) : !is_usual) continue;
    if (idx++ % kParts != static_cast<size_t>(GetParam())) continue;
    const AttentionArguments p = backward(problem(row));
    const DeviceInfo device = typical_device(kArchs[row.arch_idx]);
    const Recipe recipe = backward_sm80_recipe(p, device);
    const std::string what = words(p, set.name, recipe) + ", sm_" + std::to_string(device.arch);
    ASSERT_EQ(recipe.ineligible, "") << what;
    for (const Step& step : recipe.steps) {
      const auto cubin = store.get(step.program, {.arch = device.arch});
      const Resources& takes = cubin->resources;
      EXPECT_EQ(takes.spill_store_bytes + takes.spill_load_bytes + takes.stack_bytes, 0)
          << what << ": " << step.program.expression.substr(0, 45) << "\n"
          << cubin->log;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Parts, KernelMatrixBackward, testing::Range(0, kParts));

}  // namespace
}  // namespace tessella::kernel_matrix
