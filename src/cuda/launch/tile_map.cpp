#include "cuda/launch/tile_map.hpp"

#include <algorithm>

#include "cuda/compile/user_source.hpp"

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
  return tile_map(p, tiles,
                  p.dense_mask.batch_stride != 0 || p.block_map.batch_stride != 0 || p.draft_mask.batch_stride != 0 ||
                      p.document_q.batch_stride != 0 || p.document_kv.batch_stride != 0,
                  p.dense_mask.head_stride != 0 || p.block_map.head_stride != 0);
}

TileMap largest_tile_map(const core::AttentionShape& bounds, const MapTiles& tiles) {
  return tile_map(bounds, tiles, bounds.features.has_any(core::kElementMasks),
                  bounds.features.has_any(Feature::dense_mask | Feature::block_map));
}

}  // namespace tessella::cuda
