// Rows of the CPU kernel table. The machine is asked once per process what it supports.
#include "cpu/kernels.hpp"

#include <array>
#include <limits>
#include <string>

#include "cpu/amx/backward_amx.hpp"
#include "cpu/amx/forward_amx.hpp"
#include "cpu/amx/linear_amx.hpp"
#include "cpu/append.hpp"
#include "cpu/copy_pages.hpp"
#include "cpu/forward_widened.hpp"
#include "cpu/linear_blas.hpp"
#include "cpu/parallel.hpp"
#include "cpu/quantize.hpp"
#include "cpu/vector/backward_vector.hpp"
#include "cpu/vector/decode_vector.hpp"
#include "cpu/vector/forward_vector.hpp"
#include "cpu/vector/linear_vector.hpp"
#include "operations/attention/arguments.hpp"
#include "operations/linear/arguments.hpp"
#include "operations/merge/arguments.hpp"
#include "process/once.hpp"

namespace tessella::cpu {
namespace {

constexpr uint32_t kWiderFloats =
    dtype_bit(core::DType::f32) | dtype_bit(core::DType::bf16) | dtype_bit(core::DType::f16);

// Calls fn as the kernels compute tensors of this dtype: f64 in double, others in float.
template <typename Fn>
auto with_real(core::DType dtype, Fn&& fn) {
  return dtype == core::DType::f64 ? fn.template operator()<double>() : fn.template operator()<float>();
}

// The fields that are the same in all rows of the vector kernels.
template <InstructionSet kSet, class Row>
constexpr core::Kernel vector_row(core::Operation operation, std::string_view name, std::string_view summary,
                                  std::string_view architectures) {
  core::Kernel kernel;
  kernel.name = name;
  kernel.operation = operation;
  kernel.summary = summary;
  kernel.architectures = architectures;
  kernel.dtypes = dtype_bit(core::DType::f64) | dtype_bit(core::DType::f32) | dtype_bit(core::DType::bf16) |
                  dtype_bit(core::DType::f16);
  kernel.max_head_dim = kMaxHeadDim;
  kernel.unavailable = [](core::Device) { return process::once([] { return vector_unavailable(kSet); }); };
  kernel.offer = core::needs<Row::workspace>;
  kernel.threads = threads_for;
  kernel.describe = Row::describe;
  kernel.run = Row::run;
  return kernel;
}

template <InstructionSet kSet>
struct VectorRow {
  static std::string describe(const core::Plan& plan) {
    return "query tiles of " + std::to_string(kQueryTileRows) + " rows, tiles of " + std::to_string(kTileKeys) +
           " keys, " + threads_string(plan.num_threads);
  }
  static core::WorkspaceSize workspace(const core::Shape& shape, int num_threads) {
    return with_real(core::dtype(shape),
                     [&]<typename Real>() { return vector_workspace<Real>(core::attention(shape), num_threads); });
  }
  static void run(const core::Arguments& arguments, const core::Plan& plan, core::Workspace workspace, void*) {
    const core::AttentionArguments& p = core::attention(arguments);
    with_real(p.dtype(), [&]<typename Real>() { run_vector(vector_kernel<Real>(kSet), p, plan, workspace); });
  }
  static constexpr core::Kernel kernel(std::string_view name, std::string_view summary,
                                       std::string_view architectures) {
    core::Kernel kernel = vector_row<kSet, VectorRow>(core::Operation::forward, name, summary, architectures);
    kernel.features = core::kCommonFeatures;
    return kernel;
  }
};

template <InstructionSet kSet>
struct DecodeRow {
  static core::Offer offer(const core::Shape& shape, int num_threads) {
    if (std::string reason = decode_ineligible(core::attention(shape)); !reason.empty()) return {.ineligible = reason};
    return core::needs<workspace>(shape, num_threads);
  }
  static std::string describe(const core::Plan& plan) {
    return "splits of " + std::to_string(split_keys(core::attention(plan.shape))) + " keys, " +
           threads_string(plan.num_threads);
  }
  static core::WorkspaceSize workspace(const core::Shape& shape, int num_threads) {
    return with_real(core::dtype(shape),
                     [&]<typename Real>() { return decode_workspace<Real>(core::attention(shape), num_threads); });
  }
  static void run(const core::Arguments& arguments, const core::Plan& plan, core::Workspace workspace, void*) {
    const core::AttentionArguments& p = core::attention(arguments);
    with_real(p.dtype(), [&]<typename Real>() { run_decode<Real>(kSet, p, plan, workspace); });
  }
  static constexpr core::Kernel kernel(std::string_view name, std::string_view summary,
                                       std::string_view architectures) {
    core::Kernel kernel = vector_row<kSet, DecodeRow>(core::Operation::forward, name, summary, architectures);
    kernel.max_head_dim = kMaxDecodeHeadDim;
    kernel.features = core::kCommonFeatures | core::kQuantizedFeatures;
    kernel.kv_dtypes = core::kCacheDTypes;
    kernel.serves_few = true;
    kernel.offer = offer;
    return kernel;
  }
};

template <InstructionSet kSet>
struct BackwardRow {
  static std::string describe(const core::Plan& plan) {
    return with_real(core::dtype(plan.shape), [&]<typename Real>() {
      return describe_backward(vector_backward<Real>(kSet).kernel, core::attention(plan.shape), plan.num_threads);
    });
  }
  static core::WorkspaceSize workspace(const core::Shape& shape, int num_threads) {
    return with_real(core::dtype(shape), [&]<typename Real>() {
      return backward_workspace(vector_backward<Real>(kSet).kernel, core::attention(shape), num_threads);
    });
  }
  static void run(const core::Arguments& arguments, const core::Plan& plan, core::Workspace workspace, void*) {
    const core::AttentionArguments& p = core::attention(arguments);
    with_real(p.dtype(),
              [&]<typename Real>() { run_backward(vector_backward<Real>(kSet).kernel, p, plan, workspace); });
  }
  static constexpr core::Kernel kernel(std::string_view name, std::string_view summary,
                                       std::string_view architectures) {
    core::Kernel kernel = vector_row<kSet, BackwardRow>(core::Operation::backward, name, summary, architectures);
    kernel.features = core::kCommonFeatures.without(core::kForwardOnlyFeatures) | core::kGradientFeatures;
    return kernel;
  }
};

template <InstructionSet kSet>
struct MergeRow {
  static std::string describe(const core::Plan& plan) { return "a row at a time, " + threads_string(plan.num_threads); }
  static core::WorkspaceSize workspace(const core::Shape& shape, int num_threads) {
    return with_real(core::dtype(shape),
                     [&]<typename Real>() { return merge_workspace<Real>(core::merge(shape), num_threads); });
  }
  static void run(const core::Arguments& arguments, const core::Plan& plan, core::Workspace workspace, void*) {
    const core::MergeArguments& a = core::merge(arguments);
    with_real(a.dtype(), [&]<typename Real>() { run_merge(vector_kernel<Real>(kSet).merge_rows, a, plan, workspace); });
  }
  static constexpr core::Kernel kernel(std::string_view name, std::string_view summary,
                                       std::string_view architectures) {
    core::Kernel kernel = vector_row<kSet, MergeRow>(core::Operation::merge, name, summary, architectures);
    kernel.max_head_dim = std::numeric_limits<int32_t>::max();
    kernel.features = core::Feature::lse;
    return kernel;
  }
};

template <InstructionSet kSet, Products kProducts = Products::fp32>
struct LinearRow {
  static std::string describe(const core::Plan& plan) { return describe_linear(plan, kProducts); }
  static core::WorkspaceSize workspace(const core::Shape& shape, int num_threads) {
    return linear_workspace(shape, kProducts, num_threads);
  }
  static void run(const core::Arguments& arguments, const core::Plan& plan, core::Workspace workspace, void*) {
    run_linear(kSet, kProducts, core::linear(arguments), plan, workspace);
  }
  static constexpr core::Kernel kernel(std::string_view name, std::string_view summary,
                                       std::string_view architectures) {
    core::Kernel kernel = vector_row<kSet, LinearRow>(core::Operation::linear, name, summary, architectures);
    kernel.dtypes = kWiderFloats;
    kernel.max_head_dim = std::numeric_limits<int32_t>::max();
    kernel.kv_dtypes = core::kWeightDTypes;
    if (kProducts == Products::bf16) {
      kernel.dtypes = dtype_bit(core::DType::bf16);
      kernel.kv_dtypes = core::kSameDType;
      kernel.unavailable = [](core::Device) { return process::once([] { return bf16_products_unavailable(); }); };
    }
    return kernel;
  }
};

constexpr uint32_t kFloat8s = dtype_bit(core::DType::f8e4m3fn) | dtype_bit(core::DType::f8e5m2);
constexpr core::Kernel kForwardWidened = {
    .name = "cpu.forward_widened",
    .summary = "fp8 in copies of fp32, by another kernel; out of fp8, amax",
    .dtypes = kWiderFloats | kFloat8s,
    .max_head_dim = kMaxHeadDim,
    .features = core::kCommonFeatures | core::kQuantizedFeatures | core::Feature::scales | core::Feature::transposed_v,
    .kv_dtypes = core::kCacheDTypes,
    .out_dtypes = core::kSameDType | kWiderFloats | kFloat8s,
    .serves_few = true,  // by a kernel that does
    .offer = offer_widened,
    .threads = threads_for,
    .describe = describe_widened,
    .run = run_widened};
constexpr core::Kernel kAppend = {.name = "cpu.append",
                                  .operation = core::Operation::append,
                                  .summary = "plain loops, a row at a time, fp32 or f64",
                                  .dtypes = dtype_bit(core::DType::f64) | dtype_bit(core::DType::f32) |
                                            dtype_bit(core::DType::bf16) | dtype_bit(core::DType::f16),
                                  .max_head_dim = std::numeric_limits<int32_t>::max(),
                                  .offer = core::needs<append_workspace>,
                                  .threads = threads_for,
                                  .describe = describe_append,
                                  .run = run_append};
constexpr core::Kernel kCopyPages = {.name = "cpu.copy_pages",
                                     .operation = core::Operation::copy_pages,
                                     .summary = "copies of memory, a page at a time",
                                     .dtypes = core::kAllDTypes,
                                     .max_head_dim = std::numeric_limits<int32_t>::max(),
                                     .threads = threads_for,
                                     .describe = describe_copy_pages,
                                     .run = run_copy_pages};
constexpr core::Kernel kQuantize = {
    .name = "cpu.quantize",
    .operation = core::Operation::quantize,
    .summary = "plain loops, a row at a time, fp32",
    .dtypes = dtype_bit(core::DType::f32) | dtype_bit(core::DType::bf16) | dtype_bit(core::DType::f16),
    .max_head_dim = std::numeric_limits<int32_t>::max(),
    .offer = core::needs<quantize_workspace>,
    .threads = threads_for,
    .describe = describe_quantize,
    .run = run_quantize};
constexpr core::Kernel kDequantize = {.name = "cpu.dequantize",
                                      .operation = core::Operation::dequantize,
                                      .summary = "plain loops, a row at a time, fp32",
                                      .dtypes = dtype_bit(core::DType::f8e4m3fn) | dtype_bit(core::DType::f8e5m2),
                                      .max_head_dim = std::numeric_limits<int32_t>::max(),
                                      .offer = core::needs<quantize_workspace>,
                                      .threads = threads_for,
                                      .describe = describe_quantize,
                                      .run = run_dequantize};

auto all_kernels() {
  const std::array kernels = {
#if defined(__x86_64__)
    DecodeRow<InstructionSet::avx512>::kernel("cpu.decode_avx512", "few queries, keys split over threads, AVX-512",
                                              "avx512"),
    DecodeRow<InstructionSet::avx2>::kernel("cpu.decode_avx2", "few queries, keys split over threads, AVX2 and FMA",
                                            "avx2"),
    DecodeRow<InstructionSet::sse4>::kernel("cpu.decode_sse4", "few queries, keys split over threads, SSE4", "sse4"),
    DecodeRow<InstructionSet::baseline>::kernel("cpu.decode_baseline",
                                                "few queries, keys split over threads, any x86-64", "any"),
    kForwardAmx,
    VectorRow<InstructionSet::avx512>::kernel("cpu.forward_avx512", "fp32 or f64 on AVX-512, 16 or 8 rows a vector",
                                              "avx512"),
    VectorRow<InstructionSet::avx2>::kernel("cpu.forward_avx2", "fp32 or f64 on AVX2 and FMA, 8 or 4 rows a vector",
                                            "avx2"),
    VectorRow<InstructionSet::sse4>::kernel("cpu.forward_sse4", "fp32 or f64 on SSE4, 4 or 2 rows a vector", "sse4"),
    VectorRow<InstructionSet::baseline>::kernel("cpu.forward_baseline", "fp32 or f64, one row at a time, any x86-64",
                                                "any"),
    kForwardWidened,
    kBackwardAmx,
    BackwardRow<InstructionSet::avx512>::kernel("cpu.backward_avx512", "fp32 or f64 on AVX-512, 16 or 8 rows a vector",
                                                "avx512"),
    BackwardRow<InstructionSet::avx2>::kernel("cpu.backward_avx2", "fp32 or f64 on AVX2 and FMA, 8 or 4 rows a vector",
                                              "avx2"),
    BackwardRow<InstructionSet::sse4>::kernel("cpu.backward_sse4", "fp32 or f64 on SSE4, 4 or 2 rows a vector", "sse4"),
    BackwardRow<InstructionSet::baseline>::kernel("cpu.backward_baseline", "fp32 or f64, one row at a time, any x86-64",
                                                  "any"),
    MergeRow<InstructionSet::avx512>::kernel("cpu.merge_avx512", "fp32 or f64 on AVX-512", "avx512"),
    MergeRow<InstructionSet::avx2>::kernel("cpu.merge_avx2", "fp32 or f64 on AVX2 and FMA", "avx2"),
    MergeRow<InstructionSet::sse4>::kernel("cpu.merge_sse4", "fp32 or f64 on SSE4", "sse4"),
    MergeRow<InstructionSet::baseline>::kernel("cpu.merge_baseline", "fp32 or f64, one element at a time, any x86-64",
                                               "any"),
    kLinearBlas,
    kLinearAmx,
    LinearRow<InstructionSet::avx512, Products::bf16>::kernel(
        "cpu.linear_avx512_bf16", "bf16 by AVX-512's products of two in a lane", "avx512_bf16"),
    LinearRow<InstructionSet::avx512>::kernel("cpu.linear_avx512", "fp32 on AVX-512, w widened in registers", "avx512"),
    LinearRow<InstructionSet::avx2>::kernel("cpu.linear_avx2", "fp32 on AVX2 and FMA, w widened in registers", "avx2"),
    LinearRow<InstructionSet::sse4>::kernel("cpu.linear_sse4", "fp32 on SSE4, w widened in registers", "sse4"),
    LinearRow<InstructionSet::baseline>::kernel("cpu.linear_baseline", "fp32, one product at a time, any x86-64",
                                                "any"),
#else
    DecodeRow<InstructionSet::baseline>::kernel(
        "cpu.decode_baseline", "few queries, keys split over threads, the baseline's vectors (NEON)", "any"),
    VectorRow<InstructionSet::baseline>::kernel("cpu.forward_baseline", "fp32 or f64 on the baseline's vectors (NEON)",
                                                "any"),
    kForwardWidened,
    BackwardRow<InstructionSet::baseline>::kernel("cpu.backward_baseline",
                                                  "fp32 or f64 on the baseline's vectors (NEON)", "any"),
    MergeRow<InstructionSet::baseline>::kernel("cpu.merge_baseline", "fp32 or f64 on the baseline's vectors (NEON)",
                                               "any"),
    kLinearBlas,
    LinearRow<InstructionSet::baseline>::kernel("cpu.linear_baseline", "fp32 on the baseline's vectors (NEON)", "any"),
#endif
    kAppend,
    kCopyPages,
    kQuantize,
    kDequantize,
  };
  return kernels;
}

}  // namespace

core::KernelTable cpu_kernels() {
  return process::once([] { return all_kernels(); });
}

}  // namespace tessella::cpu
