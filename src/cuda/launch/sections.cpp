#include "cuda/launch/sections.hpp"

#include <algorithm>

namespace tessella::cuda {

using core::AttentionShape;

int64_t all_heads(const AttentionShape& p) {
  return (p.batch + (p.features.has(core::Feature::packed_q) ? 1 : 0)) * p.heads_q;
}

// What reads the same keys is to run at the same time, lest the L2 cache loses them in between (it holds them once for
// each of its halves). So a section is one KV head where all tiles see equally many keys. Where they grow, the longest
// tiles of a section start first: it has as many KV heads as make a tile for each block, or as an eighth of the cache
// holds if those are more. The last one, whose short tiles fill the gaps that long ones leave at the end, has four
// times as many, but no more than half of the cache holds, and what would be left of a section before it.
// (docs/lab/forward_sm90.md has what was measured.)
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
