// The kernel matrix of forward_sm80 and forward_sm90.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "cuda/compile/cubin_store.hpp"
#include "cuda/compile/nvrtc.hpp"
#include "cuda/kernels/forward_f8_sm90/recipe.hpp"
#include "cuda/kernels/forward_sm80/config.hpp"
#include "cuda/kernels/forward_sm80/recipe.hpp"
#include "cuda/kernels/forward_sm90/recipe.hpp"
#include "gpu/kernel_matrix.hpp"
#include "operations/attention/arguments.hpp"

namespace tessella::kernel_matrix {
namespace {

using namespace cuda;

// What is compiled of a step in the end: nothing takes its place.
const Step& last(const Step& step) { return step.if_spilled == nullptr ? step : last(*step.if_spilled); }

// What is wrong with a row's kernels, or "".
std::string problem_of(const Row& row, CubinStore& store) {
  const AttentionArguments p = problem(row);
  const DeviceInfo device = typical_device(kArchs[row.arch_idx]);
  const Recipe recipe = forward_sm80_recipe(p, device);
  const std::string what = words(p, kFeatureSets[row.set_idx].name, recipe) + (row.is_aligned ? "" : ", unaligned") +
                           ", sm_" + std::to_string(device.arch);
  if (!recipe.ineligible.empty()) return what + recipe.ineligible;
  std::string wrong;
  for (const Step& first : recipe.steps) {
    const Step& step = last(first);
    try {
      const auto cubin = store.get(step.program, {.arch = device.arch});
      const Resources& takes = cubin->resources;
      const std::string said = what + ": " + std::to_string(takes.registers) + " registers, " +
                               std::to_string(takes.stack_bytes) + " bytes of stack";
      std::cout << said << ", " << static_cast<int>(cubin->milliseconds) << " ms" << std::endl;
      const bool spills = takes.spill_store_bytes + takes.spill_load_bytes + takes.stack_bytes != 0;
      const auto registers = static_cast<unsigned>(takes.registers) * step.threads;
      const bool fits = takes.registers > 0 && registers * static_cast<unsigned>(step.blocks_per_sm) <= 65536 &&
                        takes.static_shared_bytes + step.shared_bytes <= device.shared_bytes_per_block;
      if (spills || !fits) wrong += said + "\n" + cubin->log;
    } catch (const core::Error& error) {
      wrong += what + ": " + error.what();
    }
  }
  return wrong;
}

class KernelMatrix : public testing::TestWithParam<int> {};

TEST_P(KernelMatrix, CompilesWithoutSpills) {
  if (nvrtc() == nullptr) GTEST_SKIP() << nvrtc_problem();
  CubinStore store(TESSELLA_TEST_CACHE, nvrtc());
  const std::vector<Row> all = rows();
  for (size_t i = static_cast<size_t>(GetParam()); i < all.size(); i += kParts)
    EXPECT_EQ(problem_of(all[i], store), "");
}

TEST(KernelMatrixSm90, CompilesWithoutSpillsOrWaits) {
  if (nvrtc() == nullptr) GTEST_SKIP() << nvrtc_problem();
  CubinStore store(TESSELLA_TEST_CACHE, nvrtc());
  const FeatureSet sets[] = {{"plain", {}},
                             {"dense mask", Feature::dense_mask},
                             {"softcap", Feature::softcap},
                             {"alibi", Feature::alibi},
                             {"bias", Feature::bias},
                             {"bias in f32", Feature::bias, DType::f32},
                             {"dropout", Feature::dropout},
                             {"softcap and dropout", Feature::softcap | Feature::dropout},
                             {"score_mod", Feature::score_mod},
                             {"softcap and score", Feature::softcap | Feature::score_mod},
                             {"alibi and score", Feature::alibi | Feature::score_mod},
                             {"bias and dropout", Feature::bias | Feature::dropout},
                             {"mask_mod", Feature::mask_mod},
                             {"pages", Feature::paged_kv},
                             {"masks", core::kElementMasks | Feature::mask_mod},
                             {"draft mask", Feature::draft_mask},
                             {"key ranges", Feature::key_ranges},
                             {"query ranges", Feature::query_ranges},
                             {"mask and softcap", Feature::dense_mask | Feature::softcap},
                             {"mask, softcap and dropout", Feature::mask_mod | Feature::softcap | Feature::dropout},
                             {"mask and alibi", Feature::document | Feature::alibi},
                             {"mask and bias in f32", Feature::dense_mask | Feature::bias, DType::f32},
                             {"mask and pages", Feature::dense_mask | Feature::paged_kv},
                             {"mask and dropout", Feature::block_map | Feature::dropout},
                             {"mask and score", Feature::document | Feature::score_mod},
                             {"batch invariant", {}, DType::none, true},
                             {"batch invariant softcap", Feature::softcap, DType::none, true},
                             {"batch invariant alibi", Feature::alibi, DType::none, true},
                             {"batch invariant score", Feature::score_mod, DType::none, true},
                             {"batch invariant mask", Feature::document, DType::none, true},
                             {"batch invariant mask and bias", Feature::document | Feature::bias, DType::f32, true}};
  // Rows that see few keys, or many, take tiles of their own in wide heads.
  constexpr struct {
    int64_t qk, v, seqlen_kv;
  } kDims[] = {{64, 64, 4096},   {96, 96, 4096},   {128, 128, 1024}, {128, 128, 8192}, {192, 128, 4096},
               {192, 192, 4096}, {256, 256, 4096}, {256, 256, 1024}, {64, 128, 4096},  {128, 64, 4096}};
  for (size_t set = 0; set < std::size(sets); ++set) {
    for (size_t dims = 0; dims < std::size(kDims); ++dims) {
      // Plain, with a mask, with a softcap, with ALiBi and with a score_mod: every size. Every other feature at one, a
      // mask_mod and what lies beside a score_mod at 128 too.
      const auto is_alone = [&](Feature of) { return sets[set].features == of && !sets[set].batch_invariant; };
      const bool is_score = sets[set].features == Feature::score_mod;
      const bool has_source = sets[set].features.has(Feature::score_mod) || sets[set].features.has(Feature::mask_mod);
      const bool has_softcap = is_alone(Feature::softcap);
      const bool is_wanted = set < 2 || has_softcap || is_alone(Feature::alibi) || is_score ||
                             dims == set % std::size(kDims) || (has_source && dims == 2);
      if (!g_full && !is_wanted) continue;
      AttentionArguments p = sm90_problem(kDims[dims].qk, kDims[dims].v, kDims[dims].seqlen_kv,
                                          dims == 1 && !has_softcap ? DType::f16 : DType::bf16);
      p.features = sets[set].features;
      p.batch_invariant = sets[set].batch_invariant;
      p.bias_dtype = sets[set].bias_dtype == DType::none ? p.dtype() : sets[set].bias_dtype;
      if (p.features.has(Feature::score_mod)) p.score_mod = "return score - arrays.f32(0)[h] * fabsf(q_minus_k);";
      if (p.features.has(Feature::mask_mod))
        p.mask_mod = "return arrays.i32(1)[b * 512 + q] == arrays.i32(1)[b * 512 + k];";
      // Some with a bias, of 64, 96 and 256 columns, lack a few registers; all element masks at once, of 256 columns,
      // more.
      const bool is_wide = p.head_dim_v == 256;
      const bool has_all_masks = p.features == (core::kElementMasks | Feature::mask_mod);
      const bool may_spill = p.features.has(Feature::bias) && (p.head_dim_v <= 96 || is_wide);
      const int most_spilled = has_all_masks && is_wide ? 104 : may_spill ? 16 : 0;
      expect_lean(store, p, sets[set].name, forward_sm90_recipe, most_spilled);
      if (!is_score) continue;
      p.score_mod = "return score - arrays.f32(0)[h] * fabsf(q - k);";
      expect_lean(store, p, "score by positions");
    }
  }
}

// Each feature at one size and, but for bias and dropout, at the widest.
TEST(KernelMatrixF8Sm90, CompilesWithoutSpillsOrWaits) {
  if (nvrtc() == nullptr) GTEST_SKIP() << nvrtc_problem();
  CubinStore store(TESSELLA_TEST_CACHE, nvrtc());
  const FeatureSet sets[] = {{"plain", {}},
                             {"softcap", Feature::softcap},
                             {"alibi", Feature::alibi},
                             {"bias in f32", Feature::bias, DType::f32},
                             {"dropout", Feature::dropout},
                             {"score_mod", Feature::score_mod},
                             {"pages", Feature::paged_kv},
                             {"document", Feature::document},
                             {"factors of keys", Feature::kv_scales}};
  for (const FeatureSet& set : sets) {
    for (const int64_t head_dim : {64, 96, 128, 192, 256}) {
      const bool takes_registers = set.features.has_any(Feature::bias | Feature::dropout);
      if (set.features.empty() ? false : takes_registers ? head_dim != 128 : !g_full && head_dim != 128) continue;
      AttentionArguments p = sm90_problem(head_dim, head_dim, 4096, DType::f8e4m3fn);
      p.operands[core::Name::out].dtype = DType::bf16;
      p.features = set.features;
      p.bias_dtype = set.bias_dtype;
      if (set.features.has(Feature::score_mod)) p.score_mod = "return score - arrays.f32(0)[h] * fabsf(q_minus_k);";
      if (set.features.has(Feature::kv_scales)) {
        p.operands[core::Name::k_scale].dtype = p.operands[core::Name::v_scale].dtype = DType::f32;
        p.scale_block = 1;
      }
      // At head dim 256 some words spill, of which each key tile reads some; most beside a factor a key.
      const int of_256 = set.features.has(Feature::kv_scales) ? 96 : 48;
      expect_lean(store, p, set.name, forward_f8_sm90_recipe, head_dim == 256 ? of_256 : takes_registers ? 16 : 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Parts, KernelMatrix, testing::Range(0, kParts));

}  // namespace
}  // namespace tessella::kernel_matrix
