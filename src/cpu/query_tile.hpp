// A query tile: query rows of one KV head that go over the keys together, one SIMD lane a row.
//
// The query heads of a KV head are packed query-major: row f of a (sequence, KV head) is query f / group of head
// kv_head * group + f % group. Neighbouring rows therefore see nearly the same keys, and K and V are read once for all.
// Scores of a query tile are stored transposed, [key][row], so that softmax, masks and rescaling work lane by lane.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "cpu/exp2.hpp"
#include "operations/attention/arguments.hpp"
#include "operations/attention/sequence.hpp"
#include "portable/dropout.hpp"
#include "portable/tile_class.hpp"

namespace tessella::cpu {

inline constexpr int kMaxQueryTileRows = 64;

using portable::TileClass;

struct QueryTile {
  const core::AttentionArguments* arguments = nullptr;
  const core::Sequence* sequence = nullptr;
  int64_t kv_head = 0;
  int num_rows = 0;  // valid rows; lanes past it repeat the last row and are not stored
  alignas(64) int32_t query[kMaxQueryTileRows];
  alignas(64) int32_t head[kMaxQueryTileRows];
  alignas(64) int32_t begin[kMaxQueryTileRows];  // band of each row: keys [begin, end) and [0, min(keep_first, end))
  alignas(64) int32_t end[kMaxQueryTileRows];
  int32_t keys_begin = 0;  // keys that some row sees lie in [keys_begin, keys_end) or below keep_end
  int32_t keys_end = 0;
  int32_t keep_end = 0;
  int32_t full_begin = 0;  // every row sees every key of [full_begin, full_end) as far as the band goes
  int32_t full_end = 0;
  // Of tiles of tile_keys keys (cpu/tile_map.hpp), as far as its band goes; null: all are full, or nobody knows.
  const TileClass* classes = nullptr;
  int tile_keys = 0;

  // The class of keys [key_begin, key_end), whatever the band shows of them. They hold a key below keys_end.
  TileClass class_of(int64_t key_begin, int64_t key_end) const {
    if (classes == nullptr) return TileClass::full;
    const int64_t last = ((key_end < keys_end ? key_end : keys_end) - 1) / tile_keys;
    int64_t tile = key_begin / tile_keys;
    const TileClass first = classes[tile];
    while (++tile <= last) {
      if (classes[tile] != first) return TileClass::partial;
    }
    return first;
  }
  // True if no row sees one of these keys.
  bool hides(int64_t key_begin, int64_t key_end) const {
    if (key_begin >= keep_end && (key_begin >= keys_end || key_end <= keys_begin)) return true;
    return class_of(key_begin, key_end) == TileClass::hidden;
  }
};

// The keys of all rows together: they are in query order, and the band is monotone.
inline void bound_query_tile(QueryTile& query_tile, int lanes) {
  query_tile.keys_begin = query_tile.begin[0];
  query_tile.keys_end = query_tile.end[lanes - 1];
  query_tile.full_begin = query_tile.begin[lanes - 1];
  query_tile.full_end = query_tile.end[0];
  query_tile.keep_end = static_cast<int32_t>(std::min<int64_t>(query_tile.arguments->keep_first, query_tile.keys_end));
}

// Rows [row_begin, row_begin + num_rows) of a (sequence, KV head), padded to `lanes` rows.
inline void fill_query_tile(QueryTile& query_tile, const core::AttentionArguments& arguments,
                            const core::Sequence& sequence, int64_t kv_head, int64_t row_begin, int num_rows,
                            int lanes) {
  const int64_t group = arguments.group();
  query_tile.arguments = &arguments;
  query_tile.sequence = &sequence;
  query_tile.kv_head = kv_head;
  query_tile.num_rows = num_rows;
  query_tile.classes = nullptr;
  for (int r = 0; r < lanes; ++r) {
    const int64_t row = row_begin + std::min(r, num_rows - 1);
    const int64_t query = row / group;
    query_tile.query[r] = static_cast<int32_t>(query);
    query_tile.head[r] = static_cast<int32_t>(kv_head * group + row % group);
    query_tile.begin[r] = static_cast<int32_t>(sequence.band.begin(query));
    query_tile.end[r] = static_cast<int32_t>(sequence.band.end(query));
  }
  bound_query_tile(query_tile, lanes);
}

// Turns raw products q.k of keys [key_begin, key_begin + num_keys) into what softmax sees: scale, softcap, bias and
// ALiBi, unless scores are products, then -inf where the band hides the key, or an element mask if they are to be
// applied. scores: [num_keys][lanes]. Masked products may be NaN.
template <typename Real>
using ScoreChain = void (*)(const QueryTile& query_tile, int lanes, Real* scores, int64_t key_begin, int num_keys,
                            bool applies_element_masks);

// Zeroes what dropout takes of probabilities [num_keys][lanes]. The rest is scaled where rows end.
template <typename Real>
using DropoutChain = void (*)(const QueryTile& query_tile, int lanes, Real* probs, int64_t key_begin, int num_keys);

inline portable::Dropout dropout_of(const core::AttentionArguments& arguments) {
  return {arguments.seed, arguments.offset, portable::Dropout::threshold_of(arguments.dropout)};
}

// Everything but q.k, scale and the band: with any of these there are tiles of scores that go through the score chain.
inline constexpr core::Features kScoreFeatures =
    core::kElementMasks | core::Feature::bias | core::Feature::alibi | core::Feature::softcap;

// True if softmax sees products q.k, which are exact for 16-bit inputs, and the scale enters with the exponent of 2.
// A scale below 2^-126 counts as zero; one <= 0 would turn maxima around, and the -inf of a hidden key into NaN.
inline bool scores_are_products(const core::AttentionArguments& p) {
  return !p.features.has_any(core::Feature::bias | core::Feature::alibi | core::Feature::softcap) &&
         p.scale >= std::numeric_limits<float>::min();
}

inline bool needs_score_chain(const core::AttentionArguments& p) {
  return p.features.has_any(kScoreFeatures) || !scores_are_products(p);
}

// From what softmax sees to exponents of 2.
template <typename Real>
Real exponent_scale(const core::AttentionArguments& p) {
  return scores_are_products(p) ? static_cast<Real>(p.scale) * kLog2E<Real> : kLog2E<Real>;
}

// LSE and its gradient are f32, or f64 beside f64.
inline double load_lse(const core::Operand& lse, int64_t batch_idx, int64_t row, int64_t head) {
  const std::byte* from = lse.row(batch_idx, row, head);
  double wide;
  float narrow;
  if (lse.dtype == core::DType::f64) {
    std::memcpy(&wide, from, sizeof wide);
    return wide;
  }
  std::memcpy(&narrow, from, sizeof narrow);
  return narrow;
}

inline void store_lse(const core::Operand& lse, int64_t batch_idx, int64_t row, int64_t head, double value) {
  std::byte* to = lse.row(batch_idx, row, head);
  const auto narrow = static_cast<float>(value);
  if (lse.dtype == core::DType::f64) {
    std::memcpy(to, &value, sizeof value);
  } else {
    std::memcpy(to, &narrow, sizeof narrow);
  }
}

}  // namespace tessella::cpu
