// How the queries of a sequence are divided into tiles.
#pragma once

namespace tessella::portable {

// Queries [first, end) of a sequence; none where first >= end.
template <class Int>
struct QueryRange {
  Int first, end;
};

// The queries of a tile. If tiles have more than 128 queries, the first tile is the short one (a multiple of 64),
// because it sees the fewest keys under a causal mask.
template <class Int>
constexpr QueryRange<Int> tile_queries(Int len_q, int tile_q, Int tile_idx) {
  constexpr int kRun = 64;
  Int missing = 0;
  if (tile_q > 2 * kRun) missing = (tile_q - (len_q + kRun - 1) / kRun * kRun % tile_q) % tile_q;
  const Int first = tile_idx * tile_q - missing, end = first + tile_q;
  return {first > 0 ? first : 0, end < len_q ? end : len_q};
}

}  // namespace tessella::portable
