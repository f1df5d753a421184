#include "cuda/kernels/forward_sm90/hopper_forward.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/message.hpp"
#include "cuda/kernels/classify/classify.hpp"

namespace tessella::cuda {

using core::AttentionArguments;
using core::Feature;
using core::message;
using portable::ForwardSm90Config;

namespace {

// True if some row of out may need no product: a row without a query, or a query without a key. The host does not know
// the values of tables and masks. Without these, a query whose own position is a key sees that key.
bool may_have_zero_rows(const AttentionArguments& p, const portable::ScoreConfig& score) {
  constexpr core::Features kLengths =
      Feature::packed_q | Feature::packed_kv | Feature::seqlens_q | Feature::seqlens_kv | Feature::leftpad_kv;
  const bool keys_are_unknown = p.features.has_any(kLengths) || score.mask == portable::MaskLevel::bits;
  const bool stands_elsewhere = p.features.has(Feature::causal_top_left) && p.seqlen_q != p.seqlen_kv;
  return keys_are_unknown || stands_elsewhere || p.seqlen_q > p.seqlen_kv;
}

// Seen keys, then classes.
portable::TileMapParams hopper_tile_map(const TileMap& map, void* scratch) {
  return tile_map_params(map, static_cast<char*>(scratch) + map.seen_bytes(), scratch);
}

}  // namespace

std::string unreadable_by_copy_engine(const core::AttentionShape& p) {
  constexpr int32_t kAlignment = 16;
  const int64_t piece = kAlignment / core::size_bytes(p.dtype());
  if (p.alignment() < kAlignment || p.head_dim_qk % piece != 0 || p.head_dim_v % piece != 0) {
    return message("the copy engine reads rows, heads and batches that start at multiples of ", kAlignment,
                   " bytes; q, k and v are aligned to ", p.alignment(), " bytes, head dims are ", p.head_dim_qk,
                   " and ", p.head_dim_v);
  }
  if (p.page_size % portable::kSwizzleRows != 0) {
    return message("the copy engine reads pages of a multiple of ", portable::kSwizzleRows, " rows; these have ",
                   p.page_size);
  }
  if (p.page_size != 0 && p.features.has(core::Feature::leftpad_kv)) {
    return "leftpad_kv moves tiles of keys off the borders of pages";
  }
  if (const int64_t longest = std::max({p.seqlen_q, p.seqlen_kv}); longest > portable::kHopperLongest) {
    return message("takes sequences of at most ", portable::kHopperLongest, " queries and keys; these have ", longest);
  }
  return "";
}

portable::ForwardSm90Params forward_sm90_params(const AttentionArguments& p, const portable::ForwardSm90Config& config,
                                                const TileMap& map, void* counter, void* scratch,
                                                const Concurrency& at_once) {
  portable::ForwardSm90Params params{};
  params.forward = forward_params(p, config, map, hopper_tile_map(map, scratch), at_once, portable::kHopperLongest);
  params.counter = static_cast<uint32_t*>(counter);
  params.num_query_tiles = narrow(forward_blocks(p, map));
  params.may_have_zero_rows = may_have_zero_rows(p, config.score) ? 1 : 0;
  params.box_kv = narrow(std::gcd<int64_t>(config.tile_kv, p.page_size));
  return params;
}

void add_hopper_mask_passes(Recipe& recipe, const core::AttentionShape& bounds, const ForwardSm90Config& config,
                            const std::string& user_source) {
  add_mask_passes(recipe, bounds, config, user_source,
                  [](const AttentionArguments&, const TileMap& map, const core::Workspace& workspace) {
                    return hopper_tile_map(map, workspace.scratch);
                  });
}

Step hopper_forward_step(const Program& program, const ForwardSm90Config& config, ForwardSm90ParamsOf params) {
  return {
      .program = program,
      .threads = static_cast<unsigned>(num_threads(config)),
      .shared_bytes = portable::forward_sm90_layout(config).bytes,
      .launch = [config, params = std::move(params)](const core::Shape&, const core::Arguments& call,
                                                     const Concurrency& at_once,
                                                     const core::Workspace& workspace) -> std::optional<Launch> {
        const AttentionArguments& arguments = core::attention(call);
        const TileMap map = tile_map(arguments, config);
        if (!has_rows(arguments, map)) return std::nullopt;
        const int64_t blocks = std::min(forward_blocks(arguments, map), at_once.blocks);
        return Launch{{static_cast<unsigned>(blocks), 1, 1}, Parameters(params(arguments, map, workspace, at_once))};
      }};
}

}  // namespace tessella::cuda
