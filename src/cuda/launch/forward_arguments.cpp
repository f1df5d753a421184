#include "cuda/launch/forward_arguments.hpp"

#include <utility>

#include "core/message.hpp"

namespace tessella::cuda {
namespace {

using core::AttentionArguments;
using portable::divisor;

portable::TilingParams tiling_params(const AttentionArguments& p, const ForwardTiles& tiles, int64_t tiles_q,
                                     const Concurrency& at_once) {
  const Sections of_heads = sections(p, tiles_q, at_once);
  return {.tiles_q = narrow(tiles_q),
          .slices_v = slices_v(p, tiles),
          .heads_per_section = divisor(narrow(of_heads.heads)),
          .tiles_per_section = divisor(narrow(of_heads.heads * tiles_q)),
          .first_of_last_section = narrow(of_heads.first_of_last),
          .heads_of_last_section = divisor(narrow(all_heads(p) - of_heads.first_of_last))};
}

}  // namespace

std::string lacks(const core::AttentionShape& p, int32_t shared_bytes, const DeviceInfo& device) {
  if (shared_bytes > device.shared_bytes_per_block) {
    return core::message("needs ", shared_bytes, " bytes of shared memory, and the GPU has ",
                         device.shared_bytes_per_block);
  }
  return takes_all_sms(p.num_sms, device);
}

std::string lacks_hopper(const DeviceInfo& device) {
  if (device.arch == 90) return "";
  return core::message("runs on Hopper (sm_90), and GPU ", device.id, " (", device.name, ") is sm_", device.arch);
}

std::string too_large(const core::AttentionShape& p, const MapTiles& tiles) {
  const TileMap map = largest_tile_map(p, tiles);
  for (const auto& [what, count] : {std::pair{"batch * heads_q * seqlen_q", forward_blocks(p, map)},
                                    std::pair{"batch * heads_q * seqlen_q * seqlen_kv", map.bytes()}}) {
    if (count > kMaxBlocks) {
      return core::message(what, " makes ", count, " tiles of ", tiles.tile_q, " x ", tiles.tile_kv, ", at most ",
                           kMaxBlocks);
    }
  }
  return "";
}

int64_t forward_blocks(const core::AttentionShape& p, const TileMap& map) { return map.tiles_q * all_heads(p); }

bool has_rows(const core::AttentionShape& p, const TileMap& map) { return forward_blocks(p, map) > 0 && p.total_q > 0; }

portable::ForwardParams forward_params(const AttentionArguments& p, const ForwardTiles& tiles, const TileMap& map,
                                       const portable::TileMapParams& tile_map, const Concurrency& at_once,
                                       int64_t longest) {
  return {.inputs = inputs_params(p),
          .sequences = sequences_params(p),
          .scores = scores_params(p),
          .masks = masks_params(p, longest),
          .arrays = arrays_params(p),
          .tile_map = tile_map,
          .output = output_params(p),
          .tiling = tiling_params(p, tiles, map.tiles_q, at_once)};
}

}  // namespace tessella::cuda
