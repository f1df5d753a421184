// The rows of kernel_matrix_test and their calls.
#include "gpu/kernel_matrix.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "cases/arguments.hpp"
#include "cuda/kernels/forward_sm80/config.hpp"

namespace tessella::kernel_matrix {

using namespace cuda;

bool is_representative(const Row& row) {
  const bool is_at_128 = row.dtype_idx == 0 && row.dims_idx == 3;
  if (is_at_128 && row.is_aligned && kArchs[row.arch_idx] == 90) return true;
  const size_t turn = row.dtype_idx + row.dims_idx + row.set_idx;
  if (row.dtype_idx == 1 && row.dims_idx != 1) return false;  // f16 differs from bf16 by one instruction
  if (row.set_idx == 0 && row.is_aligned) return turn % 3 == row.arch_idx || kArchs[row.arch_idx] == 90;
  if (row.is_aligned != (turn % 2 == 0) || turn % 3 != row.arch_idx) return false;
  return row.set_idx == kAll || row.dims_idx == (row.dtype_idx + 1) % 4;
}

std::vector<Row> rows() {
  std::vector<Row> all;
  for (size_t dtype = 0; dtype < std::size(kDTypes); ++dtype) {
    for (size_t dims = 0; dims < std::size(kHeadDims); ++dims) {
      for (size_t set = 0; set < std::size(kFeatureSets); ++set) {
        for (size_t arch = 0; arch < std::size(kArchs); ++arch) {
          for (const bool is_aligned : {true, false}) {
            const Row row{dtype, dims, set, arch, is_aligned};
            if (g_full || is_representative(row)) all.push_back(row);
          }
        }
      }
    }
  }
  return all;
}

AttentionArguments problem(const Row& row) {
  const FeatureSet& set = kFeatureSets[row.set_idx];
  const HeadDims& dims = kHeadDims[row.dims_idx];
  AttentionArguments p = tests::gpu_arguments({.head_dim_qk = dims.qk, .head_dim_v = dims.v}, kDTypes[row.dtype_idx]);
  p.features = set.features;
  if (!row.is_aligned) tests::set_alignment(p, 2);
  p.is_contiguous = !p.features.has(Feature::causal_top_left);
  p.batch_invariant = set.batch_invariant;
  p.bias_dtype = set.bias_dtype == DType::none ? p.dtype() : set.bias_dtype;
  if (p.features.has(Feature::score_mod)) p.score_mod = "return score - arrays.f32(0)[h] * fabsf(q - k);";
  if (p.features.has(Feature::mask_mod))
    p.mask_mod = "return arrays.i32(1)[b * 512 + q] == arrays.i32(1)[b * 512 + k];";
  return p;
}

std::string words(core::Features features) {
  std::string all;
  for (const core::FeatureName& entry : core::kFeatureNames) {
    if (features.has(entry.feature)) all += (all.empty() ? "" : ", ") + std::string(entry.name);
  }
  return all.empty() ? "no features" : all;
}

std::string words(const AttentionArguments& p, const char* features, const Recipe& recipe) {
  return std::string(core::name(p.dtype())) + " " + std::to_string(p.head_dim_qk) + "/" + std::to_string(p.head_dim_v) +
         " " + features + " (" + words(p.features) +
         (p.features.has(Feature::bias) ? std::string(", bias in ") + core::name(p.bias_dtype) : "") + "), " +
         recipe.description;
}

void expect_lean(CubinStore& store, const AttentionArguments& p, const char* name,
                 Recipe (*recipe_of)(const core::Shape&, const DeviceInfo&), int most_spilled) {
  const Recipe recipe = recipe_of(p, typical_device(90));
  EXPECT_EQ(recipe.ineligible, "") << words(p, name, recipe);
  for (const Step& step : recipe.steps) {
    const bool has_warpgroups = step.program.arch_specific;
    const auto cubin = store.get(step.program, {.arch = 90, .arch_specific = has_warpgroups});
    const Resources& takes = cubin->resources;
    const std::string what = words(p, name, recipe) + "\n" + cubin->log;
    EXPECT_LE(std::max(takes.stack_bytes, takes.spill_store_bytes), most_spilled) << what;
    EXPECT_LE(takes.spill_load_bytes, 2 * most_spilled) << what;
    if (!has_warpgroups || step.threads < 384) continue;
    EXPECT_EQ(takes.registers, 65536 / static_cast<int>(step.threads) / 8 * 8) << what;
    EXPECT_EQ(cubin->log.find("C75"), std::string::npos) << what;
  }
}

AttentionArguments sm90_problem(int64_t head_dim_qk, int64_t head_dim_v, int64_t seqlen, DType dtype) {
  return tests::gpu_arguments(
      {.seqlen_q = seqlen, .seqlen_kv = seqlen, .head_dim_qk = head_dim_qk, .head_dim_v = head_dim_v}, dtype);
}

AttentionArguments backward(AttentionArguments p) {
  p.features = p.features.without(core::kForwardOnlyFeatures) | Feature::sink | Feature::d_sink;
  if (p.features.has(Feature::alibi)) p.features |= Feature::d_alibi_slopes;
  if (p.features.has(Feature::bias)) p.features |= Feature::d_bias;
  for (const core::Name name : {core::Name::d_out, core::Name::dq, core::Name::dk, core::Name::dv}) {
    p.operands[name] = p.operands[core::Name::q];
  }
  return p;
}

}  // namespace tessella::kernel_matrix
