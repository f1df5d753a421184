#include "cuda/kernels/decode/recipe.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#include "core/fields.hpp"
#include "core/message.hpp"
#include "cuda/kernels/decode/config.hpp"
#include "cuda/launch/forward_arguments.hpp"
#include "operations/attention/arguments.hpp"
#include "portable/band.hpp"

namespace tessella::cuda {
namespace {

using core::AttentionArguments;
using core::AttentionShape;
using core::DType;
using core::Feature;
using core::message;
using core::Name;
using portable::DecodeConfig;
using portable::DecodeParams;
using portable::divisor;

int64_t sequences(const AttentionShape& p) { return p.batch + (p.features.has(Feature::packed_q) ? 1 : 0); }

// Arrival counters of units with several clusters: one word for each block of a cluster.
int64_t counters(const Splits& s) { return s.slots() > 0 ? s.units * s.cluster : 0; }

int64_t partial_floats(const Splits& s, const DecodeConfig& c) { return s.slots() * s.rows * c.head_dim_v; }

core::WorkspaceSize workspace(const Splits& s, const DecodeConfig& c) {
  const int64_t floats = partial_floats(s, c) + s.slots() * s.rows * 2;
  // A schedule has its own counters.
  return {.state_bytes = s.pieces > 0 ? 0 : counters(s) * static_cast<int64_t>(sizeof(uint32_t)),
          .scratch_bytes = floats * static_cast<int64_t>(sizeof(float))};
}

int64_t schedule_bytes(const AttentionShape& p, const Splits& s) {
  return (portable::schedule_words(sequences(p), s.pieces) + counters(s)) * static_cast<int64_t>(sizeof(int32_t));
}

portable::CacheScaleParams cache_scale(const core::Operand& t, int64_t scale_block) {
  return {t.data, t.batch_stride, scale_block == 0 ? 0 : t.row_stride, t.head_stride};
}

// Whether v_scale is one number for all keys of a sequence and KV head.
bool is_of_sequences(const AttentionArguments& a, const portable::CacheScaleParams& v_scale) {
  const auto [batch, rows] = a.axes_kv();
  const bool is_of_slots = v_scale.row_stride == 0 || rows <= a.scale_block;
  return is_of_slots && (v_scale.batch_stride == 0 || !a.page_table);
}

DecodeParams decode_params(const AttentionArguments& a, const DecodeConfig& c, const Splits& s,
                           const core::Workspace& workspace) {
  DecodeParams params{};
  params.inputs = inputs_params(a);
  params.sequences = sequences_params(a);
  params.scores = scores_params(a);
  params.masks = masks_params(a, portable::kLongestDecode);
  params.output = output_params(a);
  if (c.score.elements.kv == portable::Element::i4) {
    for (portable::OperandParams* of : {&params.inputs.k, &params.inputs.v}) {
      of->batch_stride /= 2;
      of->row_stride /= 2;
      of->head_stride /= 2;
    }
  }
  if (portable::is_quantized(c)) {
    params.k_scale = cache_scale(a.tensors[Name::k_scale], a.scale_block);
    params.v_scale = cache_scale(a.tensors[Name::v_scale], a.scale_block);
    if (is_of_sequences(a, params.v_scale)) std::swap(params.v_scale, params.out_factor);
    params.scale_block = divisor(narrow(std::clamp<int64_t>(a.scale_block, 1, portable::kLongestDecode)));
  }
  params.partial = static_cast<float*>(workspace.scratch);
  params.partial_sums = params.partial + partial_floats(s, c);
  params.arrived = static_cast<uint32_t*>(workspace.state);
  if (s.pieces > 0) {
    params.schedule = static_cast<int32_t*>(a.schedule);
    params.arrived = static_cast<uint32_t*>(a.schedule) + portable::schedule_words(sequences(a), s.pieces);
  }
  params.heads_kv = divisor(narrow(a.heads_kv));
  params.row_tiles = divisor(narrow(s.row_tiles));
  params.unit_clusters = divisor(narrow(s.unit_clusters));
  const int64_t quads = int64_t{s.rows} * c.head_dim_v / 4;
  params.slice = divisor(narrow((quads + s.cluster - 1) / s.cluster));
  params.rows = s.rows;
  params.cluster = s.cluster;
  params.pieces = narrow(s.pieces);
  params.split_rounds = s.split_rounds;
  params.num_sequences = narrow(sequences(a));
  params.log2_round_keys = std::countr_zero(static_cast<uint32_t>(s.cluster * portable::step_keys(c)));
  params.cache_is_settled = a.cache_is_settled ? 1 : 0;
  return params;
}

std::string description(const DecodeConfig& c, const Splits& s, const DeviceInfo& device) {
  return message(c.rows, " query rows of head dims ", c.head_dim_qk, " and ", c.head_dim_v, ", ", c.num_warps,
                 " warps of ", portable::kDecodeTile, " keys, ", c.depth, c.depth == 1 ? " step" : " steps", " ahead, ",
                 s.pieces > 0 ? message("a schedule of ", s.pieces, " pieces")
                 : s.split_rounds > 0
                     ? message("keys cut at multiples of ", s.split_rounds * s.cluster * portable::step_keys(c))
                     : message(s.unit_clusters * s.cluster, s.unit_clusters * s.cluster == 1 ? " split" : " splits",
                               " of the keys"),
                 " in clusters of ", s.cluster, device.arch >= 90 ? "" : " (before Hopper there are no others)", ", ",
                 shared_bytes(c), " bytes of shared memory");
}

Step decode_step(const DecodeConfig& config, const Splits& splits, const DeviceInfo& device) {
  return {.program = decode_program(config),
          .threads = static_cast<unsigned>(config.num_warps) * 32,
          .cluster = static_cast<unsigned>(splits.cluster),
          .shared_bytes = shared_bytes(config),
          .is_dependent = device.arch >= 90,
          .launch = [config, splits](const core::Shape&, const core::Arguments& call, const Concurrency&,
                                     const core::Workspace& workspace) -> std::optional<Launch> {
            const AttentionArguments& arguments = core::attention(call);
            if (arguments.total_q == 0 || splits.units == 0) return std::nullopt;
            const auto blocks = static_cast<unsigned>(splits.clusters() * splits.cluster);
            return Launch{{blocks, 1, 1}, Parameters(decode_params(arguments, config, splits, workspace))};
          }};
}

Step schedule_step(const DecodeConfig& config, const Splits& splits) {
  return {.program = decode_schedule_program(),
          .threads = portable::kScheduleThreads,
          .shared_bytes = portable::kScheduleThreads * static_cast<int>(sizeof(int32_t)),
          .launch = [config, splits](const core::Shape&, const core::Arguments& call, const Concurrency&,
                                     const core::Workspace& workspace) -> std::optional<Launch> {
            const AttentionArguments& arguments = core::attention(call);
            return Launch{{1, 1, 1}, Parameters(decode_params(arguments, config, splits, workspace))};
          }};
}

// Why this kernel does not take a call; "" if it does.
std::string ineligible(const AttentionShape& p, bool is_named) {
  const bool is_few = p.query_class == core::QueryClass::few;
  const DType cache = p.operands[Name::k].dtype;
  const auto fills = [](DType dtype, int64_t columns) { return core::size_bits(dtype) * columns % 128 == 0; };
  if (p.alignment() < 16 || !fills(p.dtype(), p.head_dim_qk) || !fills(cache, p.head_dim_qk) ||
      !fills(cache, p.head_dim_v)) {
    return "takes rows of q, k and v that begin at multiples of 16 bytes and fill them";
  }
  if (has_long_rows(p)) {
    if (cache != p.dtype()) {
      return message("takes k and v of 8 or 4 bits with head dims to ", kMostDecodeColumns, ", not ", p.head_dim_qk,
                     " and ", p.head_dim_v);
    }
    if (!p.v_in_k && p.seqlen_kv > 0) {
      return message("takes head dims above ", kMostDecodeColumns,
                     " where v is the first columns of k: the same memory and strides");
    }
    if (p.dtype() == core::DType::f32) return message("takes head dims above ", kMostDecodeColumns, " in bf16 and f16");
    if (p.head_dim_qk > 576 || p.head_dim_v > 512) {
      return message("takes head dims to 576 and 512, not ", p.head_dim_qk, " and ", p.head_dim_v);
    }
  }
  if (p.batch_invariant && !is_few)
    return "is for few queries, and batch_invariant without query_class few is for many";
  if (p.features.has(Feature::draft_mask) && p.seqlen_q > portable::kMostDrafts) {
    return message("takes draft_mask of at most ", portable::kMostDrafts, " queries, and there may be ", p.seqlen_q);
  }
  // No other kernel takes caches of 8 and 4 bits, and no other holds long rows in shared memory only once.
  if (is_named || is_few || cache != p.dtype() || has_long_rows(p)) return "";
  if (decode_rows(p) > kMostDecodeRows) {
    return message("takes at most ", kMostDecodeRows, " query rows of a KV head, and there may be ", decode_rows(p),
                   " (", p.seqlen_q, p.seqlen_q == 1 ? " query" : " queries", " of ", p.group(), " heads)");
  }
  constexpr int64_t kFewQueries = 8;  // which no other kernel has tiles for
  // Lengths as plans of the cache have them: what is asked about a call is answered as the call runs.
  const bool has_few_keys = core::rounded_length(p.seqlen_kv) < 4 * core::rounded_few(p.seqlen_q);
  if (p.seqlen_q > kFewQueries && has_few_keys && p.num_splits <= 1 && !p.features.has(Feature::schedule)) {
    return message("is for caches, and ", p.seqlen_q, " queries have at most ", p.seqlen_kv, " keys");
  }
  return "";
}

// It tests masks of elements key by key, and others skip the tiles that these hide.
std::string leaves(const AttentionShape& p) {
  const bool has_others = p.operands[Name::k].dtype == p.dtype() && !has_long_rows(p);
  if (!has_others || !p.features.has_any(core::kElementMasks.without(Feature::draft_mask))) return "";
  return "leaves masks of elements to kernels that skip hidden tiles, unless named";
}

Recipe recipe(AttentionShape bounds, const DeviceInfo& device, bool unified_max) {
  // One schedule serves all plans of these lengths and of the cache's lengths, which are rounded (core/fields.hpp).
  if (bounds.features.has(Feature::schedule)) bounds.seqlen_q = core::rounded(bounds).seqlen_q;
  if (std::string reason = ineligible(bounds, unified_max); !reason.empty()) return {.ineligible = reason};
  const DecodeConfig config = decode_config(bounds, device, unified_max);
  if (std::string lacking = lacks(bounds, shared_bytes(config), device); !lacking.empty())
    return {.ineligible = lacking};
  const Splits splits = decode_splits(bounds, config, device);
  const int64_t rounds = bounds.seqlen_kv / portable::step_keys(config) + 2;
  constexpr int64_t kMost = 1 << 30;
  if (std::max(bounds.seqlen_kv, decode_rows(bounds)) > portable::kLongestDecode) {
    return {.ineligible = message("takes at most ", portable::kLongestDecode, " keys and query rows of a sequence")};
  }
  if (splits.clusters() * splits.cluster > kMost || splits.units > kMost / splits.cluster ||
      (splits.pieces > 0 && splits.units > kMost / (rounds + splits.pieces))) {
    return {.ineligible = message("splits ", splits.units, " units of keys, which is too many")};
  }
  Recipe recipe{.leaves = leaves(bounds),
                .workspace = workspace(splits, config),
                .description = description(config, splits, device)};
  recipe.steps.push_back(decode_step(config, splits, device));
  if (splits.pieces > 0) {
    recipe.made_bytes = schedule_bytes(bounds, splits);
    recipe.made_before.push_back(schedule_step(config, splits));
  }
  return recipe;
}

}  // namespace

Recipe decode_recipe(const core::Shape& shape, const DeviceInfo& device) {
  return recipe(core::attention(shape), device, false);
}
Recipe decode_unified_max_recipe(const core::Shape& shape, const DeviceInfo& device) {
  return recipe(core::attention(shape), device, true);
}

// Every key is read once for all query rows of a tile.
core::Cost decode_cost(const core::Arguments& call, const DeviceInfo& device) {
  const AttentionArguments& p = core::attention(call);
  const DecodeConfig c = decode_config(p, device, false);
  const Splits s = decode_splits(p, c, device);
  const portable::Band band{.seqlen_q = p.seqlen_q,
                            .seqlen_kv = p.seqlen_kv,
                            .window_left = p.window_left,
                            .window_right = p.window_right,
                            .chunk = p.chunk,
                            .keep_first = p.keep_first,
                            .causal_top_left = p.features.has(Feature::causal_top_left)};
  const int64_t last = std::max<int64_t>(p.seqlen_q - 1, 0);
  const int64_t begin = band.begin(0), end = band.end(last);
  const auto keys = static_cast<double>(std::max<int64_t>(end - begin, 0) + std::min(p.keep_first, begin));
  const auto dims = static_cast<double>(p.head_dim_qk + p.head_dim_v);
  const auto bytes = [](DType dtype, double columns) {
    return columns * static_cast<double>(core::size_bits(dtype)) / 8;
  };
  const auto cached = c.v_in_k ? static_cast<double>(p.head_dim_qk) : dims;
  const auto units = static_cast<double>(p.batch * p.heads_kv * s.row_tiles);
  const auto rows = static_cast<double>(p.batch * p.heads_q * p.seqlen_q);
  const auto extra = static_cast<double>(workspace(s, c).scratch_bytes);
  return {.score_passes = 1,
          .bytes_moved =
              units * keys * bytes(p.operands[Name::k].dtype, cached) + rows * bytes(p.dtype(), dims) + 2 * extra,
          .extra_bytes = extra};
}

}  // namespace tessella::cuda
