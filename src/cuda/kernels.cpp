// The table of GPU kernels, best first.
#include "cuda/kernels.hpp"

#include <array>
#include <limits>

#include "cuda/kernels/append/recipe.hpp"
#include "cuda/kernels/backward_sm80/recipe.hpp"
#include "cuda/kernels/backward_sm90/recipe.hpp"
#include "cuda/kernels/classify/classify.hpp"
#include "cuda/kernels/copy_pages/recipe.hpp"
#include "cuda/kernels/decode/recipe.hpp"
#include "cuda/kernels/forward_f8_sm90/recipe.hpp"
#include "cuda/kernels/forward_sm80/recipe.hpp"
#include "cuda/kernels/forward_sm90/recipe.hpp"
#include "cuda/kernels/forward_widened/recipe.hpp"
#include "cuda/kernels/ladder/recipe.hpp"
#include "cuda/kernels/linear_blas/recipe.hpp"
#include "cuda/kernels/linear_gemv/recipe.hpp"
#include "cuda/kernels/linear_sm80/recipe.hpp"
#include "cuda/kernels/linear_sm90/recipe.hpp"
#include "cuda/kernels/merge/recipe.hpp"
#include "cuda/kernels/quantize/params.cuh"
#include "cuda/kernels/quantize/recipe.hpp"
#include "cuda/launch/forward_arguments.hpp"
#include "cuda/launch/run.hpp"
#include "process/once.hpp"

namespace tessella::cuda {
namespace {

using core::DType;
using core::dtype_bit;

constexpr uint32_t kHalves = dtype_bit(DType::bf16) | dtype_bit(DType::f16);
constexpr uint32_t kFloats = kHalves | dtype_bit(DType::f32);
constexpr uint32_t kFloat8s = dtype_bit(DType::f8e4m3fn) | dtype_bit(DType::f8e5m2);

// All masks, and what enters a score without memory of its own.
constexpr core::Features kDecodeFeatures =
    core::kCommonFeatures.without(core::Feature::bias | core::Feature::dropout) | core::Feature::schedule;

constexpr core::Features kForwardFeatures = core::kCommonFeatures | core::kModFeatures;
constexpr core::Features kFloat8Features =
    kForwardFeatures | core::kQuantizedFeatures | core::Feature::scales | core::Feature::transposed_v;
constexpr core::Features kBackwardFeatures =
    kForwardFeatures.without(core::kForwardOnlyFeatures) | core::kGradientFeatures;

constexpr KernelRow kDecode = {.name = "cuda.decode",
                               .summary = "Flash-Decoding: few queries, keys split over blocks, one launch",
                               .architectures = "sm_80+",
                               .dtypes = kFloats,
                               .max_head_dim = 576,
                               .features = kDecodeFeatures | core::kQuantizedFeatures,
                               .kv_dtypes = core::kCacheDTypes,
                               .serves_few = true,
                               .splits_keys = true,
                               .recipe = decode_recipe,
                               .cost = decode_cost};
constexpr KernelRow kDecodeUnifiedMax = {
    .name = "cuda.decode_unified_max",
    .summary = "FlashDecoding++'s softmax: one maximum for all rows, recomputed where it does not serve",
    .architectures = "sm_80+",
    .dtypes = kFloats,
    .max_head_dim = 256,
    .features = kDecodeFeatures,
    .splits_keys = true,
    .automatic = 0,
    .recipe = decode_unified_max_recipe,
    .cost = decode_cost};
constexpr KernelRow kForwardSm90 = {
    .name = "cuda.forward_sm90",
    .summary = "FlashAttention-3 with Hopper's copy engine and warpgroup matrix instructions",
    .architectures = "sm_90a",
    .unavailable = lacks_hopper,
    .dtypes = kHalves,
    .max_head_dim = 256,
    .features = kForwardFeatures | core::Feature::mask_map,
    .made_needed = mask_map_bytes,
    .recipe = forward_sm90_recipe,
    .cost = forward_sm90_cost};
constexpr KernelRow kForwardF8Sm90 = {.name = "cuda.forward_f8_sm90",
                                      .summary = "FlashAttention-3 in 8 bits, P V summed in fp32 tile by tile",
                                      .architectures = "sm_90a",
                                      .unavailable = lacks_hopper,
                                      .dtypes = dtype_bit(DType::f8e4m3fn),
                                      .max_head_dim = 256,
                                      .features = kFloat8Features | core::Feature::mask_map,
                                      .out_dtypes = kFloats,
                                      .made_needed = mask_map_bytes,
                                      .recipe = forward_f8_sm90_recipe,
                                      .cost = forward_f8_sm90_cost};
constexpr KernelRow kForwardSm80 = {
    .name = "cuda.forward_sm80",
    .summary = "FlashAttention-2 by the matrix instructions of a warp, any GPU from Ampere on",
    .architectures = "sm_80+",
    .dtypes = kFloats,
    .max_head_dim = 512,
    .features = kForwardFeatures | core::Feature::mask_map,
    .made_needed = mask_map_bytes,
    .recipe = forward_sm80_recipe,
    .cost = forward_sm80_cost};
// Before cuda.decode, which reads caches of 8 bits where they are: this one leaves it the calls of few queries.
constexpr KernelRow kForwardWidened = {
    .name = "cuda.forward_widened",
    .summary = "tensors of 8 bits in copies of bf16, by another kernel; out of fp8, amax",
    .architectures = "sm_80+",
    .dtypes = kFloats | kFloat8s,
    .max_head_dim = 512,
    .features = kFloat8Features,
    .kv_dtypes = core::kSameDType | dtype_bit(DType::f8e4m3fn) | dtype_bit(DType::i8),
    .out_dtypes = core::kSameDType | kFloats | kFloat8s,
    .recipe = forward_widened_recipe};
constexpr KernelRow kBackwardSm90 = {
    .name = "cuda.backward_sm90",
    .operation = core::Operation::backward,
    .summary = "FlashAttention-3's backward with Hopper's copy engine and warpgroup matrix instructions",
    .architectures = "sm_90a",
    .unavailable = lacks_hopper,
    .dtypes = kHalves,
    .max_head_dim = 256,
    .features = kBackwardFeatures | core::Feature::mask_map,
    .made_needed = mask_map_bytes,
    .recipe = backward_sm90_recipe,
    .cost = backward_sm90_cost};
constexpr KernelRow kBackwardSm80 = {
    .name = "cuda.backward_sm80",
    .operation = core::Operation::backward,
    .summary = "FlashAttention-2's backward by the matrix instructions of a warp, any GPU from Ampere on",
    .architectures = "sm_80+",
    .dtypes = kFloats,
    .max_head_dim = 256,
    .features = kBackwardFeatures | core::Feature::mask_map,
    .made_needed = mask_map_bytes,
    .recipe = backward_sm80_recipe,
    .cost = backward_sm80_cost};
constexpr KernelRow kMerge = {.name = "cuda.merge",
                              .operation = core::Operation::merge,
                              .summary = "fp32, a few threads a row, any GPU from Ampere on",
                              .architectures = "sm_80+",
                              .dtypes = kFloats,
                              .max_head_dim = 1 << 20,
                              .features = core::Feature::lse,
                              .recipe = merge_recipe};
constexpr KernelRow kAppend = {.name = "cuda.append",
                               .operation = core::Operation::append,
                               .summary = "fp32, a few threads a row, any GPU from Ampere on",
                               .architectures = "sm_80+",
                               .dtypes = kFloats,
                               .max_head_dim = 1 << 20,
                               .features = {},
                               .recipe = append_recipe};
constexpr KernelRow kCopyPages = {.name = "cuda.copy_pages",
                                  .operation = core::Operation::copy_pages,
                                  .summary = "a block a portion of a page, any GPU from Ampere on",
                                  .architectures = "sm_80+",
                                  .dtypes = core::kAllDTypes,
                                  .max_head_dim = std::numeric_limits<int32_t>::max(),
                                  .features = {},
                                  .recipe = copy_pages_recipe};
constexpr KernelRow kQuantize = {.name = "cuda.quantize",
                                 .operation = core::Operation::quantize,
                                 .summary = "fp32, a row in the registers of a few threads, any GPU from Ampere on",
                                 .architectures = "sm_80+",
                                 .dtypes = kFloats,
                                 .max_head_dim = portable::kMostQuantizedColumns,
                                 .features = {},
                                 .recipe = quantize_recipe};
constexpr KernelRow kDequantize = {.name = "cuda.dequantize",
                                   .operation = core::Operation::dequantize,
                                   .summary = "fp32, a row in the registers of a few threads, any GPU from Ampere on",
                                   .architectures = "sm_80+",
                                   .dtypes = dtype_bit(DType::f8e4m3fn) | dtype_bit(DType::f8e5m2),
                                   .max_head_dim = portable::kMostQuantizedColumns,
                                   .features = {},
                                   .recipe = dequantize_recipe};
// Before all others of linear, to which it leaves few rows.
constexpr KernelRow kLinearBlas = {.name = "cuda.linear_blas",
                                   .operation = core::Operation::linear,
                                   .summary = "many rows, by the machine's cuBLAS",
                                   .architectures = "sm_80+",
                                   .dtypes = kFloats,
                                   .max_head_dim = std::numeric_limits<int32_t>::max(),
                                   .features = {},
                                   .recipe = linear_blas_recipe};
constexpr KernelRow kLinearSm90 = {
    .name = "cuda.linear_sm90",
    .operation = core::Operation::linear,
    .summary = "up to 64 rows at once, w read by Hopper's copy engine and multiplied by its warpgroups",
    .architectures = "sm_90a",
    .unavailable = lacks_hopper,
    .dtypes = kHalves,
    .max_head_dim = std::numeric_limits<int32_t>::max(),
    .features = {},
    .recipe = linear_sm90_recipe};
// Before linear_sm80, to which it leaves more than one row of 16 bits.
constexpr KernelRow kLinearGemv = {.name = "cuda.linear_gemv",
                                   .operation = core::Operation::linear,
                                   .summary = "fp32 multiply-adds, a warp a few rows of w, any GPU from Ampere on",
                                   .architectures = "sm_80+",
                                   .dtypes = kFloats,
                                   .max_head_dim = std::numeric_limits<int32_t>::max(),
                                   .features = {},
                                   .kv_dtypes = core::kWeightDTypes,
                                   .recipe = linear_gemv_recipe};
constexpr KernelRow kLinearSm80 = {
    .name = "cuda.linear_sm80",
    .operation = core::Operation::linear,
    .summary = "w from memory into the matrix instructions of warps, any GPU from Ampere on",
    .architectures = "sm_80+",
    .dtypes = kHalves,
    .max_head_dim = std::numeric_limits<int32_t>::max(),
    .features = {},
    .kv_dtypes = core::kWeightDTypes,
    .recipe = linear_sm80_recipe};
// FlashDecoding++'s own comparison of flat products (arXiv 2311.01282, section 4).
constexpr KernelRow rung_of_linear(std::string_view name, std::string_view summary,
                                   decltype(KernelRow::recipe) recipe) {
  KernelRow row = kLinearSm90;
  row.name = name;
  row.summary = summary;
  row.automatic = 0;
  row.recipe = recipe;
  return row;
}
constexpr KernelRow kLinearOneStage = rung_of_linear(
    "cuda.linear_one_stage", "cuda.linear_sm90 with one stage: w is read, then multiplied", linear_one_stage_recipe);
constexpr KernelRow kLinearTwoStages =
    rung_of_linear("cuda.linear_two_stages", "cuda.linear_sm90 with two stages, FlashDecoding++'s double buffering",
                   linear_two_stages_recipe);
constexpr KernelRow kLinearPadded = rung_of_linear(
    "cuda.linear_padded", "cuda.linear_sm90 with rows padded to 64, as large products have them", linear_padded_recipe);
constexpr KernelRow kStandard = {.name = "cuda.standard",
                                 .summary = "standard attention: three kernels, an N x N matrix in memory",
                                 .architectures = "sm_80+",
                                 .dtypes = kFloats,
                                 .max_head_dim = 512,
                                 .automatic = 0,
                                 .recipe = standard_recipe,
                                 .cost = standard_cost};
constexpr KernelRow kStandardBackward = {
    .name = "cuda.standard_backward",
    .operation = core::Operation::backward,
    .summary = "standard attention's backward: three kernels, N x N matrices in memory",
    .architectures = "sm_80+",
    .dtypes = kFloats,
    .max_head_dim = 256,
    .features = kBackwardFeatures,
    .automatic = 0,
    .recipe = standard_backward_recipe,
    .cost = standard_backward_cost};
constexpr KernelRow kFlash1 = {.name = "cuda.flash_1",
                               .summary = "FlashAttention-1: K, V outside; O, l, m rescaled in memory",
                               .architectures = "sm_80+",
                               .dtypes = kFloats,
                               .max_head_dim = 512,
                               .automatic = 0,
                               .recipe = flash_1_recipe,
                               .cost = flash_1_cost};

}  // namespace

core::KernelTable cuda_kernels() {
  return process::once([] {
    return std::array{kernel<kForwardF8Sm90>(),
                      kernel<kForwardWidened>(),
                      kernel<kDecode>(),
                      kernel<kForwardSm90>(),
                      kernel<kForwardSm80>(),
                      kernel<kBackwardSm90>(),
                      kernel<kBackwardSm80>(),
                      kernel<kMerge>(),
                      kernel<kAppend>(),
                      kernel<kCopyPages>(),
                      kernel<kStandard>(),
                      kernel<kStandardBackward>(),
                      kernel<kDecodeUnifiedMax>(),
                      kernel<kFlash1>(),
                      kernel<kQuantize>(),
                      kernel<kDequantize>(),
                      with_cublas(kernel<kLinearBlas>()),
                      kernel<kLinearSm90>(),
                      kernel<kLinearGemv>(),
                      kernel<kLinearSm80>(),
                      kernel<kLinearOneStage>(),
                      kernel<kLinearTwoStages>(),
                      kernel<kLinearPadded>()};
  });
}

}  // namespace tessella::cuda
