#include "reference/kernels.hpp"

#include <algorithm>
#include <limits>
#include <string>
#include <type_traits>

#include "core/choose.hpp"
#include "core/error.hpp"
#include "core/message.hpp"
#include "core/plan.hpp"
#include "operations/attention/arguments.hpp"
#include "process/once.hpp"
#include "reference/append.hpp"
#include "reference/attention.hpp"
#include "reference/backward.hpp"
#include "reference/check.hpp"
#include "reference/copy_pages.hpp"
#include "reference/ladder/kv_head.hpp"
#include "reference/ladder/ladder.hpp"
#include "reference/linear.hpp"
#include "reference/merge.hpp"
#include "reference/quantize.hpp"

namespace tessella::reference {
namespace {

constexpr core::Features kFeatures = core::kCommonFeatures | core::Feature::slice;

constexpr uint32_t kFloats =
    core::dtype_bit(core::DType::f32) | core::dtype_bit(core::DType::bf16) | core::dtype_bit(core::DType::f16);
constexpr uint32_t kFloat8s = core::dtype_bit(core::DType::f8e4m3fn) | core::dtype_bit(core::DType::f8e5m2);
constexpr int64_t kAnyHeadDim = std::numeric_limits<int32_t>::max();

constexpr core::Features kBackwardFeatures = (kFeatures | core::kGradientFeatures).without(core::kForwardOnlyFeatures);

template <const auto& algorithm>
core::Kernel ladder_kernel() {
  constexpr bool kIsBackward = std::is_same_v<std::decay_t<decltype(algorithm)>, BackwardAlgorithm>;
  return {.name = algorithm.name,
          .operation = kIsBackward ? core::Operation::backward : core::Operation::forward,
          .summary = algorithm.summary,
          .dtypes = kFloats,
          .max_head_dim = kAnyHeadDim,
          .features = kIsBackward ? kBackwardFeatures : kFeatures,
          .automatic = 0,
          .offer = [](const core::Shape& s, int threads) -> core::Offer {
            return {.workspace = ladder_workspace(algorithm, core::attention(s), threads)};
          },
          .threads = num_threads,
          .cost = [](const core::Arguments& a) { return ladder_cost(algorithm, core::attention(a)); },
          .run = [](const core::Arguments& a, const core::Plan& plan, core::Workspace workspace,
                    void*) { ladder_run(algorithm, core::attention(a), plan.num_threads, workspace.scratch); }};
}

void require_attention(const core::AttentionArguments& a) {
  const core::AttentionShape& shape = a;
  core::AttentionShape on_cpu = shape;
  on_cpu.device = {};
  on_cpu.features = on_cpu.features.without(core::kMadeBefore);
  on_cpu.num_splits = 0;
  if (const std::string reason = core::ineligible(oracle(a.operation), core::Shape::view(on_cpu)); !reason.empty()) {
    core::unsupported(core::message("check: the reference ", reason));
  }
}

}  // namespace

core::KernelTable reference_kernels() {
  return process::once([] {
    return std::array{
        core::Kernel{
            .name = "reference.attention",
            .summary = "plain loops in float64, the oracle",
            .dtypes = kFloats | kFloat8s | core::dtype_bit(core::DType::f64),
            .max_head_dim = kAnyHeadDim,
            .features = kFeatures | core::kQuantizedFeatures | core::Feature::scales | core::Feature::transposed_v,
            .kv_dtypes = core::kCacheDTypes,
            .out_dtypes = core::kSameDType | kFloats | kFloat8s,
            .serves_few = true,  // no row knows of another
            .automatic = core::dtype_bit(core::DType::f64),
            .offer = core::needs<attention_workspace>,
            .threads = num_threads,
            .run = attention_run},
        core::Kernel{.name = "reference.backward",
                     .operation = core::Operation::backward,
                     .summary = "plain loops in float64, the oracle",
                     .dtypes = kFloats | core::dtype_bit(core::DType::f64),
                     .max_head_dim = kAnyHeadDim,
                     .features = kBackwardFeatures,
                     .automatic = core::dtype_bit(core::DType::f64),
                     .offer = core::needs<backward_workspace>,
                     .threads = num_threads,
                     .run = backward_run},
        core::Kernel{.name = "reference.merge",
                     .operation = core::Operation::merge,
                     .summary = "plain loops in float64, the oracle",
                     .dtypes = kFloats | core::dtype_bit(core::DType::f64),
                     .max_head_dim = kAnyHeadDim,
                     .features = core::Feature::lse,
                     .automatic = core::dtype_bit(core::DType::f64),
                     .offer = core::needs<merge_workspace>,
                     .threads = num_threads,
                     .run = merge_run},
        core::Kernel{.name = "reference.append",
                     .operation = core::Operation::append,
                     .summary = "plain loops in float64, the oracle",
                     .dtypes = kFloats | core::dtype_bit(core::DType::f64),
                     .max_head_dim = kAnyHeadDim,
                     .automatic = core::dtype_bit(core::DType::f64),
                     .offer = core::needs<append_workspace>,
                     .threads = num_threads,
                     .run = append_run},
        core::Kernel{.name = "reference.copy_pages",
                     .operation = core::Operation::copy_pages,
                     .summary = "plain loops, the oracle",
                     .dtypes = core::kAllDTypes,
                     .max_head_dim = kAnyHeadDim,
                     .automatic = 0,
                     .run = copy_pages_run},
        core::Kernel{.name = "reference.quantize",
                     .operation = core::Operation::quantize,
                     .summary = "plain loops in float64, the oracle",
                     .dtypes = kFloats,
                     .max_head_dim = kAnyHeadDim,
                     .automatic = 0,
                     .offer = core::needs<quantize_workspace>,
                     .threads = num_threads,
                     .run = quantize_run},
        core::Kernel{.name = "reference.dequantize",
                     .operation = core::Operation::dequantize,
                     .summary = "plain loops in float64, the oracle",
                     .dtypes = kFloat8s,
                     .max_head_dim = kAnyHeadDim,
                     .automatic = 0,
                     .offer = core::needs<quantize_workspace>,
                     .threads = num_threads,
                     .run = dequantize_run},
        core::Kernel{.name = "reference.linear",
                     .operation = core::Operation::linear,
                     .summary = "plain loops in float64, the oracle",
                     .dtypes = kFloats | core::dtype_bit(core::DType::f64),
                     .max_head_dim = kAnyHeadDim,
                     .kv_dtypes = core::kWeightDTypes,
                     .automatic = core::dtype_bit(core::DType::f64),
                     .threads = num_threads,
                     .run = linear_run},
        ladder_kernel<kStandard>(),
        ladder_kernel<kSafeSoftmax>(),
        ladder_kernel<kOnlineSoftmax>(),
        ladder_kernel<kOnePass>(),
        ladder_kernel<kFlash1>(),
        ladder_kernel<kFlash2>(),
        ladder_kernel<kFlashDecoding>(),
        ladder_kernel<kFlashDecodingPp>(),
        ladder_kernel<kStandardBackward>(),
        ladder_kernel<kFlashBackward>(),
    };
  });
}

const core::Kernel& oracle(core::Operation operation) {
  return *std::ranges::find(reference_kernels(), operation, &core::Kernel::operation);
}

void require_oracle(const core::Arguments& arguments) {
  const core::Operation operation = core::facts(arguments).operation;
  if (operation == core::Operation::forward || operation == core::Operation::backward) {
    require_attention(core::attention(arguments));
  }
}

CheckReport check(const core::Arguments& arguments, int64_t num_rows, uint64_t seed, core::DeviceType computed_on) {
  const core::Operation operation = core::facts(arguments).operation;
  switch (operation) {
    case core::Operation::forward: return check_forward(core::attention(arguments), num_rows, seed, computed_on);
    case core::Operation::backward: return check_backward(core::attention(arguments), num_rows, seed);
    case core::Operation::append: return check_append(core::append(arguments), num_rows, seed);
    case core::Operation::merge: return check_merge(core::merge(arguments), num_rows, seed);
    case core::Operation::copy_pages: return check_copy_pages(core::copy_pages(arguments), num_rows, seed);
    case core::Operation::quantize:
    case core::Operation::dequantize: return check_quantize(core::quantize(arguments), num_rows, seed);
    case core::Operation::linear: return check_linear(core::linear(arguments), num_rows, seed);
  }
  core::unsupported(core::message("check: no reference computes ", name(operation)));
}

}  // namespace tessella::reference
