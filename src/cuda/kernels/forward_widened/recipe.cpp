#include "cuda/kernels/forward_widened/recipe.hpp"

#include <algorithm>
#include <bit>

#include "core/element.hpp"
#include "core/message.hpp"
#include "cuda/compile/expression.hpp"
#include "cuda/kernels/forward_f8_sm90/recipe.hpp"
#include "cuda/kernels/forward_sm80/recipe.hpp"
#include "cuda/kernels/forward_sm90/recipe.hpp"
#include "cuda/kernels/forward_widened/inner_call.hpp"
#include "cuda/kernels/forward_widened/params.cuh"
#include "cuda/launch/forward_arguments.hpp"
#include "operations/attention/arguments.hpp"

namespace tessella::cuda {
namespace {

using core::AttentionArguments;
using core::AttentionShape;
using core::DType;
using core::Feature;
using core::message;
using core::Name;
using core::Operand;
using portable::divisor;
using portable::NarrowConfig;
using portable::NarrowParams;
using portable::WidenConfig;
using portable::WidenParams;
using portable::WidenRows;
using portable::WidenTensor;

// Query rows that read a key together; with fewer, decoding reads caches of 8 bits where they are.
constexpr int64_t kFewRows = 64;

bool has_amax(const AttentionShape& p) { return p.operands[Name::amax].dtype != DType::none; }

std::string ineligible(const AttentionShape& p) {
  const DType kv = p.operands[Name::k].dtype;
  if (!core::is_quantized(kv)) {
    if (core::is_float8(p.out_dtype()) || has_amax(p)) return "";
    return message("is for q, k, v or out of 8 bits and for amax; q is ", name(p.dtype()));
  }
  if (core::is_float8(p.dtype())) return "";
  if (p.dtype() != DType::bf16) {
    return message("takes k and v of 8 bits beside q of bf16, which has the range of their scales, not beside ",
                   name(p.dtype()));
  }
  if (const int64_t rows = p.seqlen_q * p.group(); p.query_class == core::QueryClass::few || rows <= kFewRows) {
    return message("is for many queries beside ", name(kv), ": more than ", kFewRows,
                   " rows of a KV head, and there are ", rows, " (", p.seqlen_q,
                   p.seqlen_q == 1 ? " query" : " queries", " of ", p.group(), " heads)");
  }
  return "";
}

// Another forward kernel, and what is done around it.
struct Inner {
  const char* name;
  Around around;
  std::shared_ptr<const core::Shape> bounds;
  Recipe recipe;
};
using MakeRecipe = Recipe (*)(const core::Shape&, const DeviceInfo&);

Inner inner_by(const char* name, MakeRecipe make, const AttentionShape& p, bool reads_float8,
               const DeviceInfo& device) {
  Inner inner{name, around(p, reads_float8), nullptr, {}};
  inner.bounds = std::make_shared<const core::Shape>(inner_shape(p, inner.around));
  inner.recipe = make(*inner.bounds, device);
  return inner;
}

// The best kernel for q, k and v as they are, if only out or amax keep it from the call, or for the copies.
Inner inner_of(const AttentionShape& p, const DeviceInfo& device) {
  constexpr int64_t kMostSm90 = 256;
  if (lacks_hopper(device).empty() && p.dtype() != DType::f32 && std::max(p.head_dim_qk, p.head_dim_v) <= kMostSm90) {
    if (p.dtype() == DType::f8e4m3fn && (around(p, true).narrows || has_amax(p))) {
      Inner inner = inner_by("cuda.forward_f8_sm90", forward_f8_sm90_recipe, p, true, device);
      if (inner.recipe.ineligible.empty()) return inner;
    }
    Inner inner = inner_by("cuda.forward_sm90", forward_sm90_recipe, p, false, device);
    if (inner.recipe.ineligible.empty()) return inner;
  }
  return inner_by("cuda.forward_sm80", forward_sm80_recipe, p, false, device);
}

// Threads of a row: a power of two, as many as the row has pieces or the next more, at most those of a warp.
int32_t log2_lanes(int64_t head_dim, bool vectors) {
  const int64_t pieces = vectors ? head_dim / portable::kWidenPiece : head_dim;
  return std::countr_zero(std::min<uint64_t>(std::bit_ceil(static_cast<uint64_t>(pieces)), 32));
}

bool are_vectors(const Operand& from, const Operand& into, int64_t head_dim) {
  return head_dim % portable::kWidenPiece == 0 && rows_are_aligned(from, head_dim) && rows_are_aligned(into, head_dim);
}

portable::TableParams table(const core::Table<int32_t>& t) { return {t.data, t.batch_stride, t.stride}; }
portable::TableParams of_sequences(const core::Table<int32_t>& t) { return {t.data, 0, t.batch_stride}; }

WidenRows rows(const AttentionArguments& a, const core::Table<int32_t>& cu_seqlens, const core::Table<int32_t>& lengths,
               int64_t count, int64_t heads) {
  return {.batch = cu_seqlens ? 1 : a.batch,
          .rows = count,
          .heads = narrow(heads),
          .sequences = narrow(a.batch),
          .cu_seqlens = table(cu_seqlens),
          .lengths = of_sequences(lengths),
          .scale_block = divisor(narrow(std::min<int64_t>(a.scale_block, 1 << 30)))};
}
WidenRows rows_q(const AttentionArguments& a) { return rows(a, a.cu_seqlens_q, a.seqlens_q, a.total_q, a.heads_q); }

WidenTensor tensor(const Operand& from, const Operand& into, const Operand& scale, int64_t head_dim, bool is_of_keys,
                   bool is_transposed = false) {
  const bool vectors = !is_transposed && are_vectors(from, into, head_dim);
  Operand rows = from;
  if (is_transposed) rows.row_stride = 1;
  return {.from = operand(rows),
          .into = operand(into),
          .column_stride = is_transposed ? from.row_stride : 1,
          .scale = operand(scale),
          .head_dim = narrow(head_dim),
          .log2_lanes = log2_lanes(head_dim, vectors),
          .vectors = vectors ? 1 : 0,
          .is_of_keys = is_of_keys ? 1 : 0,
          .is_transposed = is_transposed ? 1 : 0};
}

// Blocks of a step that moves so many rows.
unsigned blocks_of(int64_t rows, int32_t lanes, const Concurrency& at_once) {
  const int64_t rows_of_block = portable::kWidenThreads >> lanes;
  return static_cast<unsigned>(std::clamp<int64_t>((rows + rows_of_block - 1) / rows_of_block, 1, at_once.blocks));
}

std::optional<Launch> widen_launch(const AttentionArguments& a, const AttentionArguments& inner, const Around& around,
                                   const Concurrency& at_once) {
  WidenParams params{};
  params.q = rows_q(a);
  params.kv = rows(a, a.cu_seqlens_kv, a.seqlens_kv, inner.total_kv, a.heads_kv);
  unsigned blocks = 1;
  const auto add = [&](WidenTensor& to, const WidenRows& of, const WidenTensor& given) {
    to = given;
    blocks = std::max(blocks, blocks_of(of.batch * of.rows * of.heads, given.log2_lanes, at_once));
  };
  if (around.widens_q) {
    add(params.tensors[0], params.q, tensor(a.q(), inner.q(), a.tensors[Name::q_scale], a.head_dim_qk, false));
  }
  if (around.widens_kv) {
    add(params.tensors[1], params.kv, tensor(a.k(), inner.k(), a.tensors[Name::k_scale], a.head_dim_qk, true));
    add(params.tensors[2], params.kv,
        tensor(a.v(), inner.v(), a.tensors[Name::v_scale], a.head_dim_v, true, a.features.has(Feature::transposed_v)));
    params.page_table = table(a.page_table);
    params.page_size = divisor(narrow(a.page_size));
    params.num_pages = narrow(a.num_pages);
    params.slots = narrow(a.slots);
    params.cache_batch_idx = of_sequences(a.cache_batch_idx);
  }
  params.amax = operand(a.tensors[Name::amax]);
  const auto axes = a.scale_axes(a.axes_q(), a.features.has(Feature::packed_q));
  params.amax_batch = axes.batch;
  params.amax_blocks = axes.rows;
  return Launch{{blocks, portable::kWidenTensors + 1, 1}, Parameters(params)};
}

std::optional<Launch> narrow_launch(const AttentionArguments& a, const AttentionArguments& inner, const Around&,
                                    const Concurrency& at_once) {
  NarrowParams params{};
  params.result = operand(inner.out());
  params.out = operand(a.out());
  params.out_scale = operand(a.tensors[Name::out_scale]);
  params.amax = operand(a.tensors[Name::amax]);
  params.rows = rows_q(a);
  params.head_dim = narrow(a.head_dim_v);
  const bool vectors = are_vectors(inner.out(), a.out(), a.head_dim_v);
  params.vectors = vectors ? 1 : 0;
  params.log2_lanes = log2_lanes(a.head_dim_v, vectors);
  const int64_t count = params.rows.batch * params.rows.rows * params.rows.heads;
  if (count == 0) return std::nullopt;
  return Launch{{blocks_of(count, params.log2_lanes, at_once), 1, 1}, Parameters(params)};
}

// A step of this kernel; launch: of the call and of the other kernel's.
template <typename MakeLaunch>
Step step_of(Program program, const Copies& at, MakeLaunch launch) {
  return {.program = std::move(program),
          .threads = portable::kWidenThreads,
          .blocks_per_sm = portable::kWidenBlocksPerSm,
          .launch = [at, launch](const core::Shape&, const core::Arguments& call, const Concurrency& at_once,
                                 const core::Workspace& workspace) {
            const AttentionArguments& arguments = core::attention(call);
            return launch(arguments, inner_call(arguments, at, workspace.scratch), at.around, at_once);
          }};
}

// A step of the other kernel, for its call.
Step wrapped(Step step, const std::shared_ptr<const core::Shape>& bounds, const Copies& at) {
  step.launch = [launch = std::move(step.launch), bounds, at](const core::Shape&, const core::Arguments& call,
                                                              const Concurrency& at_once,
                                                              const core::Workspace& workspace) {
    const AttentionArguments inner = inner_call(core::attention(call), at, workspace.scratch);
    return launch(*bounds, &inner, at_once, {workspace.state, static_cast<std::byte*>(workspace.scratch) + at.scratch});
  };
  if (step.if_spilled != nullptr) step.if_spilled = std::make_shared<const Step>(wrapped(*step.if_spilled, bounds, at));
  return step;
}

}  // namespace

Recipe forward_widened_recipe(const core::Shape& shape, const DeviceInfo& device) {
  const AttentionShape& p = core::attention(shape);
  if (std::string reason = ineligible(p); !reason.empty()) return {.ineligible = reason};
  Inner inner = inner_of(p, device);
  if (!inner.recipe.ineligible.empty()) {
    return {.ineligible = message("is computed by ", inner.name, ", which ", inner.recipe.ineligible)};
  }
  const Around& around = inner.around;
  const Copies at = copies(p, around);
  Recipe recipe{.workspace = inner.recipe.workspace};
  recipe.workspace.scratch_bytes += at.scratch;
  const DType copied = p.operands[Name::k].dtype;
  const portable::Element into = core::element(core::attention(*inner.bounds).operands[Name::k].dtype);
  recipe.description = message(around.widens_q    ? message("q, k and v of ", name(copied), " in ", name(into))
                               : around.widens_kv ? message("k and v of ", name(copied), " in ", name(into))
                                                  : "q, k and v as they are",
                               around.narrows ? message(", out of ", name(p.out_dtype()), " from f32") : "",
                               has_amax(p) ? ", amax" : "", ", by ", inner.name, ": ", inner.recipe.description);
  if (around.widens_kv || has_amax(p)) {
    const WidenConfig config{.from = around.widens_kv ? core::element(copied) : portable::Element::e4m3,
                             .into = around.widens_kv ? into : portable::Element::bf16};
    recipe.steps.push_back(
        step_of({.header = "cuda/kernels/forward_widened/widen.cuh", .expression = expression("widen", config)}, at,
                widen_launch));
  }
  for (Step& step : inner.recipe.steps) recipe.steps.push_back(wrapped(std::move(step), inner.bounds, at));
  if (around.narrows || has_amax(p)) {
    const NarrowConfig config{.out = core::element(p.out_dtype())};
    recipe.steps.push_back(
        step_of({.header = "cuda/kernels/forward_widened/widen.cuh", .expression = expression("narrow", config)}, at,
                narrow_launch));
  }
  return recipe;
}

}  // namespace tessella::cuda
