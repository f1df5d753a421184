// Compiles the GPU's kernels as calls need them, without a GPU, for Ampere, Ada and Hopper: no row may spill, take more
// registers than its blocks leave it, or more shared memory than the GPU has.
//
// usage: kernel_matrix_test [--full]      --full: every row (20 minutes on two cores); otherwise some of each kind
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <iostream>
#include <span>
#include <string>
#include <vector>

#include "cases/arguments.hpp"
#include "core/error.hpp"
#include "core/sequence.hpp"
#include "cuda/append/recipe.hpp"
#include "cuda/backward_sm80/recipe.hpp"
#include "cuda/backward_sm90/recipe.hpp"
#include "cuda/compile/cubin_store.hpp"
#include "cuda/compile/nvrtc.hpp"
#include "cuda/copy_pages/recipe.hpp"
#include "cuda/decode/config.hpp"
#include "cuda/decode/recipe.hpp"
#include "cuda/forward_sm80/config.hpp"
#include "cuda/forward_sm80/recipe.hpp"
#include "cuda/forward_sm90/recipe.hpp"
#include "cuda/ladder/recipe.hpp"
#include "cuda/merge/recipe.hpp"

namespace {

using namespace tessella;
using namespace tessella::cuda;
using core::AttentionArguments;
using core::DType;
using core::Feature;

bool g_full = false;

constexpr int kArchs[] = {80, 89, 90};
constexpr DType kDTypes[] = {DType::bf16, DType::f16, DType::f32};

struct HeadDims {
  int64_t qk, v;
};
constexpr HeadDims kHeadDims[] = {{32, 32},   {64, 64},   {96, 96},   {128, 128}, {192, 192},
                                  {256, 256}, {384, 384}, {512, 512}, {192, 128}, {64, 256}};

struct FeatureSet {
  const char* name;
  core::Features features;
  DType bias_dtype = DType::none;
  bool batch_invariant = false;
};
const FeatureSet kFeatureSets[] = {
    {"plain", {}},
    {"softcap", Feature::softcap},
    {"alibi", Feature::alibi},
    {"bias", Feature::bias},
    {"bias in f32", Feature::bias, DType::f32},
    {"dropout", Feature::dropout},
    {"score_mod", Feature::score_mod},
    {"dense mask", Feature::dense_mask},
    {"draft mask", Feature::draft_mask},
    {"mask_mod", Feature::mask_mod},
    {"pages", Feature::paged_kv},
    {"usual together", Feature::softcap | Feature::bias | Feature::dropout},
    {"batch invariant", {}, DType::none, true},
    {"batch invariant softcap", Feature::softcap, DType::none, true},
    {"batch invariant alibi", Feature::alibi, DType::none, true},
    {"batch invariant all", core::forward_features(), DType::f32, true},
    {"all", core::forward_features(), DType::f32},
};
constexpr size_t kAll = std::size(kFeatureSets) - 1;

struct Row {
  size_t dtype_idx, dims_idx, set_idx, arch_idx;
  bool is_aligned;
};

// The plain kernels of every size; every feature alone at one size in every type, and in bf16 at head dim 128 on
// Hopper, whose tiles leave few registers; everything at once at every size. Architectures and alignments take turns.
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
  p.batch_invariant = set.batch_invariant;
  p.bias_dtype = set.bias_dtype == DType::none ? p.dtype() : set.bias_dtype;
  if (p.features.has(Feature::score_mod)) p.score_mod = "return score - arrays.f32(0)[h] * fabsf(q - k);";
  if (p.features.has(Feature::mask_mod))
    p.mask_mod = "return arrays.i32(1)[b * 512 + q] == arrays.i32(1)[b * 512 + k];";
  return p;
}

// What is compiled of a step in the end: nothing takes its place.
const Step& last(const Step& step) { return step.if_spilled == nullptr ? step : last(*step.if_spilled); }

// Features by their names, so that a set without one of its own is told from others.
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

// A test for each part of the rows, so that they compile side by side.
constexpr int kParts = 8;
class KernelMatrix : public testing::TestWithParam<int> {};

TEST_P(KernelMatrix, CompilesWithoutSpills) {
  if (nvrtc() == nullptr) GTEST_SKIP() << nvrtc_problem();
  CubinStore store(TESSELLA_TEST_CACHE, nvrtc());
  const std::vector<Row> all = rows();
  for (size_t i = static_cast<size_t>(GetParam()); i < all.size(); i += kParts)
    EXPECT_EQ(problem_of(all[i], store), "");
}

// Hopper's kernel: registers, which its warpgroups share out anew, and the assembler's notes C7510 to C7519, that it
// has made matrix instructions wait for each other. most_spilled: how many bytes of values may be in local memory, each
// loaded at two places.
void expect_lean(CubinStore& store, const AttentionArguments& p, const char* name,
                 Recipe (*recipe_of)(const core::Shape&, const DeviceInfo&) = forward_sm90_recipe,
                 int most_spilled = 0) {
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
      // Some with a bias, of 64, 96 and 256 columns, lack a few registers.
      const bool may_spill = p.features.has(Feature::bias) && (p.head_dim_v <= 96 || p.head_dim_v == 256);
      const int most_spilled = may_spill ? 16 : 0;
      expect_lean(store, p, sets[set].name, forward_sm90_recipe, most_spilled);
      if (!is_score) continue;
      p.score_mod = "return score - arrays.f32(0)[h] * fabsf(q - k);";
      expect_lean(store, p, "score by positions");
    }
  }
}

// The same call of backward, with all gradients that it has.
AttentionArguments backward(AttentionArguments p) {
  p.features = p.features.without(core::kForwardOnlyFeatures) | Feature::d_sink;
  if (p.features.has(Feature::alibi)) p.features |= Feature::d_alibi_slopes;
  if (p.features.has(Feature::bias)) p.features |= Feature::d_bias;
  for (const core::Name name : {core::Name::d_out, core::Name::dq, core::Name::dk, core::Name::dv}) {
    p.operands[name] = p.operands[core::Name::q];
  }
  return p;
}

// backward_sm90: as the forward, its registers and the assembler's notes. Features of wide rows and element masks may
// spill a few values, those of the loading warp among them.
TEST(KernelMatrixBackwardSm90, CompilesWithoutSpillsOrWaits) {
  if (nvrtc() == nullptr) GTEST_SKIP() << nvrtc_problem();
  CubinStore store(TESSELLA_TEST_CACHE, nvrtc());
  // The first ones always, the others with --full.
  const core::Features sets[] = {{},
                                 Feature::bias | Feature::dropout | Feature::alibi,
                                 Feature::dense_mask | Feature::bias,
                                 Feature::softcap,
                                 Feature::alibi,
                                 Feature::bias,
                                 Feature::dropout,
                                 Feature::score_mod,
                                 Feature::softcap | Feature::bias,
                                 Feature::softcap | Feature::dropout,
                                 Feature::document,
                                 Feature::block_map | Feature::mask_mod | Feature::dropout};
  constexpr size_t kAlways = 3;
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
        expect_lean(store, p, "backward", backward_sm90_recipe, is_tight ? 64 : 0);
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

// Those are there to be read and compared: they may spill.
TEST(LadderKernels, Compile) {
  if (nvrtc() == nullptr) GTEST_SKIP() << nvrtc_problem();
  CubinStore store(TESSELLA_TEST_CACHE, nvrtc());
  for (const Row& row : {Row{0, 3, 0, 2, true}, Row{1, 1, kAll, 0, false}, Row{2, 1, 0, 1, true}}) {
    const AttentionArguments p = problem(row);
    const int arch = kArchs[row.arch_idx];
    for (const Recipe& recipe : {standard_recipe(p, typical_device(arch)), flash_1_recipe(p, typical_device(arch)),
                                 standard_backward_recipe(backward(p), typical_device(arch))}) {
      const std::string what = words(p, kFeatureSets[row.set_idx].name, recipe) + ", sm_" + std::to_string(arch) + "\n";
      ASSERT_EQ(recipe.ineligible, "") << what;
      for (const Step& step : recipe.steps) {
        const auto cubin = store.get(step.program, {.arch = arch});
        EXPECT_GT(cubin->resources.registers, 0) << what << cubin->log;
        EXPECT_EQ(cubin->log.find("warning"), std::string::npos) << what << cubin->log;
      }
    }
  }
}

// Kernels without a tile in registers: none spills, and its blocks fit as its recipe counts on.
void expect_small(CubinStore& store, const Recipe& recipe, int arch) {
  for (const Step& step : recipe.steps) {
    const auto cubin = store.get(step.program, {.arch = arch});
    const Resources& takes = cubin->resources;
    const std::string what =
        recipe.description + ", sm_" + std::to_string(arch) + ": " + step.program.expression + "\n";
    EXPECT_EQ(takes.spill_store_bytes + takes.spill_load_bytes + takes.stack_bytes, 0) << what << cubin->log;
    EXPECT_LE(takes.registers * static_cast<int>(step.threads) * step.blocks_per_sm, 65536) << what << cubin->log;
  }
}

// merge: every pair of dtypes, pieces of 16 bytes and of one element, first and later steps.
TEST(KernelMatrixMerge, CompilesWithoutSpills) {
  if (nvrtc() == nullptr) GTEST_SKIP() << nvrtc_problem();
  CubinStore store(TESSELLA_TEST_CACHE, nvrtc());
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const DType out : {DType::f32, DType::bf16, DType::f16}) {
      if (out != dtype && out != DType::f32 && dtype != DType::f32) continue;
      for (const int32_t alignment : {16, 2}) {
        core::MergeShape shape{.num_states = 65, .states = {dtype, alignment}, .out = {out, alignment}};
        shape.head_dim = 128;
        for (const int arch : {80, 90}) expect_small(store, merge_recipe(shape, typical_device(arch)), arch);
      }
    }
  }
}

// append: every dtype of rows and angles, both ways to turn, pieces of 16 bytes and of one element.
TEST(KernelMatrixAppend, CompilesWithoutSpills) {
  if (nvrtc() == nullptr) GTEST_SKIP() << nvrtc_problem();
  CubinStore store(TESSELLA_TEST_CACHE, nvrtc());
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const DType angles : {DType::none, DType::f32, dtype}) {
      for (const bool is_interleaved : {false, true}) {
        for (const int32_t alignment : {16, 2}) {
          core::AppendShape shape{.rows = {dtype, alignment}, .cache = {dtype, alignment}, .rotary = angles};
          shape.k_new = shape.v_new = {.heads = 2, .head_dim = 128};
          shape.rotary_dim = angles == DType::none ? 0 : 64;
          shape.rotary_interleaved = is_interleaved && angles != DType::none;
          for (const int arch : {80, 90}) expect_small(store, append_recipe(shape, typical_device(arch)), arch);
        }
      }
    }
  }
}

// append into quantised caches: every dtype of these, scales that are given and computed, every piece.
TEST(KernelMatrixAppend, QuantizedCompilesWithoutSpills) {
  if (nvrtc() == nullptr) GTEST_SKIP() << nvrtc_problem();
  CubinStore store(TESSELLA_TEST_CACHE, nvrtc());
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const DType cache : {DType::f8e4m3fn, DType::i8, DType::i4}) {
      for (const int32_t alignment : {16, 2}) {
        for (const int64_t rotary_dim : {0, 128}) {
          core::AppendShape shape{.rows = {dtype, alignment}, .cache = {cache, alignment}, .scale_block = 1};
          shape.k_new = shape.v_new = {.heads = 2, .head_dim = 128};
          shape.rotary = rotary_dim == 0 ? DType::none : DType::f32;
          shape.rotary_dim = rotary_dim;
          if (rotary_dim == 0) shape.scale_block = cache == DType::i8 ? 1 : 0;
          const int arch = alignment == 16 ? 90 : 80;
          expect_small(store, append_recipe(shape, typical_device(arch)), arch);
        }
      }
    }
  }
}

// copy_pages: pieces of every size.
TEST(KernelMatrixCopyPages, CompilesWithoutSpills) {
  if (nvrtc() == nullptr) GTEST_SKIP() << nvrtc_problem();
  CubinStore store(TESSELLA_TEST_CACHE, nvrtc());
  for (const int32_t alignment : {1, 2, 4, 8, 16}) {
    const core::CopyPagesShape shape{.pools = {DType::bf16, alignment}, .num_pools = 61};
    for (const int arch : {80, 90}) expect_small(store, copy_pages_recipe(shape, typical_device(arch)), arch);
  }
}

// decode: every size, number of rows and kind of score; what the table makes of them depends on shared memory.
struct DecodeRow {
  int arch;
  DType dtype;
  HeadDims dims;
  int64_t rows;
  size_t set_idx;
};
struct DecodeSet {
  const char* name;
  core::Features features;
  bool unified_max = false, batch_invariant = false;
  DType cache = DType::none;  // of k and v; none: that of q
};
const DecodeSet kDecodeSets[] = {
    {"plain", {}},
    {"softcap", Feature::softcap},
    {"alibi and softcap", Feature::alibi | Feature::softcap},
    {"draft mask", Feature::draft_mask},
    {"unified max", {}, true},
    {"batch invariant", {}, false, true},
    {"f8e4m3fn", {}, false, false, DType::f8e4m3fn},
    {"f8e4m3fn, scales", Feature::kv_scales, false, false, DType::f8e4m3fn},
    {"i8, scales", Feature::kv_scales, false, false, DType::i8},
    {"i4, scales", Feature::kv_scales, false, false, DType::i4},
    {"f8e4m3fn, scales, softcap", Feature::kv_scales | Feature::softcap, false, false, DType::f8e4m3fn}};
constexpr int kDecodeArchs[] = {80, 86, 90};
constexpr HeadDims kDecodeDims[] = {{32, 32},   {64, 64},   {96, 96},   {128, 128},
                                    {192, 192}, {256, 256}, {192, 128}, {576, 512}};

// In bf16 at head dim 128 on Hopper every feature; plain ones of few and of most rows at every size; both extremes of
// sizes and rows in f32 and on GPUs of less shared memory. Of k and v in 8 and 4 bits both extremes of rows with
// scales.
bool is_representative(const DecodeRow& row) {
  const bool is_plain = row.set_idx == 0, is_extreme = row.rows == 8 || row.rows == 64;
  const bool is_128 = row.dims.qk == 128, is_256 = row.dims.qk == 256;
  if (kDecodeSets[row.set_idx].batch_invariant) return false;  // the same code
  if (kDecodeSets[row.set_idx].cache != DType::none) {
    const bool has_scales = kDecodeSets[row.set_idx].features == Feature::kv_scales;
    return row.arch == 90 && has_scales && is_extreme && (is_128 || (is_256 && row.dtype == DType::bf16));
  }
  if (row.dims.qk == 576) return row.arch == 90 ? is_plain && row.rows >= 16 : row.arch == 80 && is_plain && is_extreme;
  if (row.dtype == DType::bf16 && row.arch == 90) return is_128 || (is_plain && is_extreme);
  if (row.dtype == DType::f32 && row.arch != 86) return is_plain && is_extreme && (is_128 || is_256);
  return row.dtype == DType::bf16 && row.arch == 86 && is_extreme && is_256 && row.set_idx % 2 == 0;
}

std::vector<DecodeRow> decode_rows() {
  std::vector<DecodeRow> all;
  for (const DType dtype : kDTypes) {
    for (const HeadDims& dims : kDecodeDims) {
      if (dtype == DType::f16 && dims.qk != 128) continue;  // differs from bf16 by few instructions
      if (dtype == DType::f32 && dims.qk == 576) continue;  // there is none
      for (const int64_t rows : {8, 16, 32, 64}) {
        for (size_t set = 0; set < std::size(kDecodeSets); ++set) {
          if (kDecodeSets[set].unified_max && dims.qk == 576) continue;
          for (const int arch : kDecodeArchs) {
            if (kDecodeSets[set].cache != DType::none && dims.qk == 576) continue;
            const DecodeRow row{arch, dtype, dims, rows, set};
            if (g_full || is_representative(row)) all.push_back(row);
          }
        }
      }
    }
  }
  return all;
}

class KernelMatrixDecode : public testing::TestWithParam<int> {};

TEST_P(KernelMatrixDecode, CompilesWithoutSpills) {
  if (nvrtc() == nullptr) GTEST_SKIP() << nvrtc_problem();
  CubinStore store(TESSELLA_TEST_CACHE, nvrtc());
  const std::vector<DecodeRow> all = decode_rows();
  for (size_t i = static_cast<size_t>(GetParam()); i < all.size(); i += kParts) {
    const DecodeRow& row = all[i];
    const DecodeSet& set = kDecodeSets[row.set_idx];
    AttentionArguments p = tests::gpu_arguments(
        {.heads_q = row.rows, .seqlen_kv = 4096, .head_dim_qk = row.dims.qk, .head_dim_v = row.dims.v}, row.dtype);
    p.features = set.features | Feature::lse;
    p.v_in_k = row.dims.qk == 576;
    p.batch_invariant = set.batch_invariant;
    if (set.batch_invariant) p.query_class = core::QueryClass::few;
    if (set.cache != DType::none) p.operands[core::Name::k].dtype = p.operands[core::Name::v].dtype = set.cache;
    const DeviceInfo device = typical_device(row.arch);
    const Recipe recipe = set.unified_max ? decode_unified_max_recipe(p, device) : decode_recipe(p, device);
    const std::string what = words(p, set.name, recipe) + ", sm_" + std::to_string(row.arch);
    // So long rows of f32 are more than these GPUs' blocks have memory for.
    if (row.dtype == DType::f32 && row.dims.qk == 256 && row.arch == 86 && set.cache == DType::none) continue;
    EXPECT_EQ(recipe.ineligible, "") << what;
    for (const Step& step : recipe.steps) {
      const auto cubin = store.get(step.program, {.arch = row.arch});
      const Resources& takes = cubin->resources;
      const std::string said = what + ": " + std::to_string(takes.registers) + " registers, " +
                               std::to_string(takes.stack_bytes) + " bytes of stack";
      std::cout << said << ", " << static_cast<int>(cubin->milliseconds) << " ms" << std::endl;
      // Some of f32, of 96 columns and more, lack a few registers under any limit that others can bear.
      const int most_bytes = row.dtype == DType::f32 && row.dims.qk >= 96 ? 64 : 0;
      EXPECT_LE(std::max(takes.stack_bytes, takes.spill_store_bytes), most_bytes) << said << "\n" << cubin->log;
      EXPECT_LE(takes.registers * static_cast<int>(step.threads), 65536) << said;
      EXPECT_LE(takes.static_shared_bytes + step.shared_bytes, device.shared_bytes_per_block) << said;
    }
  }
}

TEST(KernelMatrixDecodeSchedule, CompilesWithoutSpills) {
  if (nvrtc() == nullptr) GTEST_SKIP() << nvrtc_problem();
  CubinStore store(TESSELLA_TEST_CACHE, nvrtc());
  for (const int arch : {80, 90}) {
    const Resources takes = store.get(decode_schedule_program(), {.arch = arch})->resources;
    EXPECT_EQ(takes.spill_store_bytes + takes.spill_load_bytes + takes.stack_bytes, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Parts, KernelMatrix, testing::Range(0, kParts));
INSTANTIATE_TEST_SUITE_P(Parts, KernelMatrixBackward, testing::Range(0, kParts));
INSTANTIATE_TEST_SUITE_P(Parts, KernelMatrixDecode, testing::Range(0, kParts));

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) g_full = g_full || std::strcmp(argv[i], "--full") == 0;
  return RUN_ALL_TESTS();
}
