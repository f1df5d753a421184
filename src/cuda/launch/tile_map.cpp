#include "cuda/launch/tile_map.hpp"

#include <algorithm>

#include "cuda/compile/user_source.hpp"
#include "operations/attention/element_masks.hpp"

namespace tessella::cuda {
namespace {

using core::AttentionArguments;
using core::Feature;

// Lengths and bands of their own.
constexpr core::Features kByBatch = Feature::seqlens_q | Feature::seqlens_kv | Feature::leftpad_kv | Feature::packed_q |
                                    Feature::packed_kv | Feature::prefix;

TileMap tile_map(const core::AttentionShape& p, const MapTiles& of, bool masks_differ_by_batch,
                 bool masks_differ_by_head) {
  const auto tiles = [](int64_t rows, int64_t tile) { return std::max<int64_t>((rows + tile - 1) / tile, 1); };
  TileMap map{.tiles_q = tiles(p.seqlen_q, of.tile_q), .kv_tiles = tiles(p.seqlen_kv, of.tile_kv)};
  if (of.mask != portable::MaskLevel::bits) return map;
  const bool by_batch = masks_differ_by_batch || p.features.has_any(kByBatch) || may_mention(p.mask_mod, "b");
  map.batches = by_batch ? p.batch : std::min<int64_t>(p.batch, 1);
  map.heads = masks_differ_by_head || may_mention(p.mask_mod, "h") ? p.heads_q : 1;
  return map;
}

}  // namespace

TileMap tile_map(const AttentionArguments& p, const MapTiles& tiles) {
  bool by_batch = false, by_head = false;
  portable::for_each_given(core::element_masks(p), [&](const auto& mask, int32_t) {
    by_batch = by_batch || mask.by_batch();
    by_head = by_head || mask.by_head();
  });
  return tile_map(p, tiles, by_batch, by_head);
}

TileMap largest_tile_map(const core::AttentionShape& bounds, const MapTiles& tiles) {
  return tile_map(bounds, tiles, bounds.features.has_any(core::kElementMasks),
                  portable::may_differ_by_head(core::element_mask_set(bounds.features)));
}

}  // namespace tessella::cuda
