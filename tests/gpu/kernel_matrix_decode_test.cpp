// The kernel matrix of decode and of its schedule.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "cases/arguments.hpp"
#include "cuda/compile/cubin_store.hpp"
#include "cuda/compile/nvrtc.hpp"
#include "cuda/kernels/decode/config.hpp"
#include "cuda/kernels/decode/recipe.hpp"
#include "cuda/kernels/forward_sm80/config.hpp"
#include "gpu/kernel_matrix.hpp"
#include "operations/attention/arguments.hpp"

namespace tessella::kernel_matrix {
namespace {

using namespace cuda;

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
    {"key ranges", Feature::key_ranges},
    {"all masks of elements", core::kElementMasks},
    {"unified max", {}, true},
    {"batch invariant", {}, false, true},
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
      const bool is_wide = row.dtype == DType::f32 && row.dims.qk >= 96;
      // Every mask of elements at once beside rows of a latent cache lacks four.
      const int of_masks = p.v_in_k && set.features.has(Feature::dense_mask) ? 16 : 0;
      const int most_bytes = !is_wide ? of_masks : set.unified_max && row.dims.qk == 256 ? 88 : 64;
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

INSTANTIATE_TEST_SUITE_P(Parts, KernelMatrixDecode, testing::Range(0, kParts));

}  // namespace
}  // namespace tessella::kernel_matrix
