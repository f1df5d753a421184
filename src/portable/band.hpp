// The band: which keys a query row may see through all masks that are an interval.
//
// Row i of a sequence sees keys [begin(i), end(i)) and [0, min(keep_first, end(i))). begin and end never fall as i
// grows, so a tile of rows sees keys from begin(first row) to end(last row), and a key tile inside
// [begin(last), end(first)) needs no element tests. Indices count from the sequence's first real key, so left
// padding and packing do not change them. Bottom-right: query i stands at key i + seqlen_kv - seqlen_q.
#pragma once

#include "portable/integers.hpp"

namespace tessella::portable {

// Int: holds every sum of two lengths and a bound.
template <class Int>
struct BasicBand {
  Int seqlen_q = 0;
  Int seqlen_kv = 0;
  Int window_left = -1;          // keys before the query's own position; -1 = no bound
  Int window_right = -1;         // keys after it; 0 = causal; -1 = no bound
  Int prefix = -1;               // keys [0, prefix) are seen by all, later ones causally; -1 = absent
  Int chunk = 0;                 // a query sees its own chunk of this many keys; 0 = absent
  Int keep_first = 0;            // keys below this ignore every lower bound
  bool causal_top_left = false;  // key j is seen iff j <= i

  constexpr Int position(Int i) const { return i + seqlen_kv - seqlen_q; }

  // One past the last visible key of row i, in [0, seqlen_kv].
  constexpr Int end(Int i) const {
    Int end = seqlen_kv;
    const Int at = position(i);
    if (window_right >= 0) end = min(end, at + window_right + 1);
    if (prefix >= 0) end = min(end, max(prefix, at + 1));
    if (causal_top_left) end = min(end, i + 1);
    if (chunk > 0) end = min(end, at < 0 ? 0 : (chunks_before(at) + 1) * chunk);
    return max(end, 0);
  }

  // First visible key of row i after those of keep_first, in [0, end(i)].
  constexpr Int begin(Int i) const { return begin(i, end(i)); }
  // The same for a caller that has end(i) already.
  constexpr Int begin(Int i, Int end) const {
    Int begin = 0;
    const Int at = position(i);
    if (window_left >= 0) begin = max(begin, at - window_left);
    if (chunk > 0 && at > 0) begin = max(begin, chunks_before(at) * chunk);
    return min(begin, end);
  }

  constexpr bool visible(Int i, Int j) const { return j < end(i) && (j >= begin(i) || j < keep_first); }

  // True if every row sees every key: nothing but lengths bounds the rows.
  constexpr bool is_full() const {
    return window_left < 0 && window_right < 0 && prefix < 0 && chunk == 0 && !causal_top_left;
  }

 private:
  // at / chunk for at >= 0, in 32 bits: positions are sums of two sequence lengths, and GPUs have no 64-bit division.
  constexpr Int chunks_before(Int at) const {
    return chunk > at ? 0 : static_cast<uint32_t>(at) / static_cast<uint32_t>(chunk);
  }
  static constexpr Int min(Int a, Int b) { return a < b ? a : b; }
  static constexpr Int max(Int a, Int b) { return a > b ? a : b; }
};

using Band = BasicBand<int64_t>;

}  // namespace tessella::portable
