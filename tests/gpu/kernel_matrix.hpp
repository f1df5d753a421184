// What the files of kernel_matrix_test share: the rows that forward and backward compile, the calls that rows stand
// for, and what Hopper's kernels must be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "core/arguments.hpp"
#include "cuda/compile/cubin_store.hpp"
#include "cuda/kernels/forward_sm90/recipe.hpp"
#include "cuda/launch/recipe.hpp"
#include "operations/attention/arguments.hpp"

namespace tessella::kernel_matrix {

using core::AttentionArguments;
using core::DType;
using core::Feature;

inline bool g_full = false;

inline constexpr int kArchs[] = {80, 89, 90};
inline constexpr DType kDTypes[] = {DType::bf16, DType::f16, DType::f32};

struct HeadDims {
  int64_t qk, v;
};
inline constexpr HeadDims kHeadDims[] = {{32, 32},   {64, 64},   {96, 96},   {128, 128}, {192, 192},
                                         {256, 256}, {384, 384}, {512, 512}, {192, 128}, {64, 256}};

struct FeatureSet {
  const char* name;
  core::Features features;
  DType bias_dtype = DType::none;
  bool batch_invariant = false;
};
inline const FeatureSet kFeatureSets[] = {
    {"plain", {}},
    {"softcap", Feature::softcap},
    {"alibi", Feature::alibi},
    {"bias", Feature::bias},
    {"bias in f32", Feature::bias, DType::f32},
    {"dropout", Feature::dropout},
    {"score_mod", Feature::score_mod},
    {"dense mask", Feature::dense_mask},
    {"draft mask", Feature::draft_mask},
    {"key ranges", Feature::key_ranges},
    {"query ranges", Feature::query_ranges},
    {"mask_mod", Feature::mask_mod},
    {"pages", Feature::paged_kv},
    {"bands with holes", Feature::causal_top_left | Feature::chunk},
    {"usual together", Feature::softcap | Feature::bias | Feature::dropout},
    {"batch invariant", {}, DType::none, true},
    {"batch invariant softcap", Feature::softcap, DType::none, true},
    {"batch invariant alibi", Feature::alibi, DType::none, true},
    {"batch invariant all", core::kCommonFeatures | core::kModFeatures, DType::f32, true},
    {"all", core::kCommonFeatures | core::kModFeatures, DType::f32},
};
inline constexpr size_t kAll = std::size(kFeatureSets) - 1;

struct Row {
  size_t dtype_idx, dims_idx, set_idx, arch_idx;
  bool is_aligned;
};

// The plain kernels of every size; every feature alone at one size in every type, and in bf16 at head dim 128 on
// Hopper, whose tiles leave few registers; everything at once at every size. Architectures and alignments take turns.
bool is_representative(const Row& row);

std::vector<Row> rows();

AttentionArguments problem(const Row& row);

// Features by their names, so that a set without one of its own is told from others.
std::string words(core::Features features);

std::string words(const AttentionArguments& p, const char* features, const cuda::Recipe& recipe);

// A test for each part of the rows, so that they compile side by side.
inline constexpr int kParts = 8;

// Hopper's kernel: registers, which its warpgroups share out anew, and the assembler's notes C7510 to C7519, that it
// has made matrix instructions wait for each other. most_spilled: how many bytes of values may be in local memory, each
// loaded at two places.
void expect_lean(cuda::CubinStore& store, const AttentionArguments& p, const char* name,
                 cuda::Recipe (*recipe_of)(const core::Shape&, const cuda::DeviceInfo&) = cuda::forward_sm90_recipe,
                 int most_spilled = 0);

AttentionArguments sm90_problem(int64_t head_dim_qk, int64_t head_dim_v, int64_t seqlen, DType dtype);

// The same call of backward, with all gradients that it has.
AttentionArguments backward(AttentionArguments p);

}  // namespace tessella::kernel_matrix
