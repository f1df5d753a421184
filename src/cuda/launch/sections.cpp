#include "cuda/launch/sections.hpp"

#include <algorithm>

namespace tessella::cuda {

using core::AttentionShape;

int64_t all_heads(const AttentionShape& p) {
  return (p.batch + (p.features.has(core::Feature::packed_q) ? 1 : 0)) * p.heads_q;
}

// Tiles that read the same keys should run at the same time, before the L2 cache evicts these (each of its halves holds
// its own copy). If all tiles see equally many keys, a section is one KV head. If they do not, the longest tiles of a
// section start first, and it has as many KV heads as give every block a tile, or as fill an eighth of the cache if
// those are more. The last section is four times as large (at most half the cache), because its short tiles fill the
// idle blocks at the end. It also takes a remainder too small for a section of its own. (Measurements:
// docs/lab/forward_sm90.md.)
Sections sections(const AttentionShape& p, int64_t tiles_q, const Concurrency& at_once) {
  const int64_t heads = all_heads(p) / p.group();  // of keys and values
  if (!p.rows_grow) return {p.group(), heads * p.group()};
  const int64_t bytes = std::max<int64_t>(p.seqlen_kv * (p.head_dim_qk + p.head_dim_v) * size_bytes(p.dtype()), 1);
  const int64_t tiles = std::max<int64_t>(tiles_q * p.group(), 1);
  const int64_t wanted = std::max({at_once.blocks / tiles, at_once.l2_bytes / 8 / bytes, int64_t{1}});
  const int64_t width = std::min(wanted, std::max<int64_t>(heads, 1));
  const int64_t last = std::min({4 * width, std::max(at_once.l2_bytes / 2 / bytes, width), heads});
  return {width * p.group(), (heads - last) / width * width * p.group()};
}

}  // namespace tessella::cuda
