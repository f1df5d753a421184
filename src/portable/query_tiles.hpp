// How the queries of a sequence are cut into tiles.
#pragma once

namespace tessella::portable {

// Queries [first, end) of a sequence; none where first >= end.
template <class Int>
struct QueryRange {
  Int first, end;
};

// Those of a tile. Of tiles of more than 128 queries the first is the short one, by whole runs of 64: under a band that
// grows with the query it sees the fewest keys.
template <class Int>
constexpr QueryRange<Int> tile_queries(Int len_q, int tile_q, Int tile_idx) {
  constexpr int kRun = 64;
  Int missing = 0;
  if (tile_q > 2 * kRun) missing = (tile_q - (len_q + kRun - 1) / kRun * kRun % tile_q) % tile_q;
  const Int first = tile_idx * tile_q - missing, end = first + tile_q;
  return {first > 0 ? first : 0, end < len_q ? end : len_q};
}

}  // namespace tessella::portable
