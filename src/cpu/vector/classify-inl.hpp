// Makes rows of a tile map (cpu/tile_map.hpp), of neighbouring query tiles: the class of each tile of keys, and the
// keys that are seen.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/query_tile.hpp"
#include "cpu/tile_map.hpp"
#include "cpu/vector/element_masks-inl.hpp"
#include "hwy/highway.h"
#include "operations/attention/sequence.hpp"

HWY_BEFORE_NAMESPACE();
namespace tessella::cpu {
namespace HWY_NAMESPACE {

// A strip of keys is classified at a time: so much of a row is read before the next row. Where it was half of a row of
// 8 KB, reading took more than twice as long. Masks that are read by columns have strips of one word.
inline constexpr int64_t kStripWords = 256;

// The words of all rows of a query tile together.
struct StripWords {
  uint64_t any[kStripWords];   // keys that the element masks show to some row
  uint64_t all[kStripWords];   // to all rows
  uint64_t seen[kStripWords];  // to some row to which the band shows them, too
};

// Bits of [begin, end) and of [0, keep) in the word of keys from `key`.
inline uint64_t band_bits(int64_t begin, int64_t end, int64_t keep, int64_t key) {
  const uint64_t below = low_bits(end - key);
  return (below & ~low_bits(begin - key)) | low_bits(keep - key);
}

// Adds what a row sees; is_new: its words are not those of the row before.
inline void add_row(const MapRow& of, int row, int64_t key_begin, int64_t num_keys, bool is_banded,
                    const uint64_t* words, bool is_new, StripWords& strip) {
  const QueryTile& query_tile = of.query_tile;
  const int64_t num_words = (num_keys + 63) / 64;
  if (is_new) {
    for (int64_t n = 0; n < num_words; ++n) {
      strip.any[n] |= words[n];
      strip.all[n] &= words[n];
    }
  }
  if (!is_banded) return;
  const int64_t end = query_tile.end[row];
  const int64_t keep = query_tile.keep_end < end ? query_tile.keep_end : end;
  for (int64_t n = 0; n < num_words; ++n) {
    strip.seen[n] |= words[n] & band_bits(query_tile.begin[row], end, keep, key_begin + 64 * n);
  }
}

// Adds all rows, row by row.
inline void add_rows(const MapRow& of, int64_t key_begin, int64_t num_keys, bool is_banded, StripWords& strip) {
  const QueryTile& query_tile = of.query_tile;
  const core::Sequence& s = *query_tile.sequence;
  uint64_t words[kStripWords];
  // Head by head where heads differ, so that neighbours often read the same; else one head's rows.
  const int group = static_cast<int>(query_tile.arguments->group());
  const int heads = of.by_head && group < query_tile.num_rows ? group : 1;
  RowMasks last = {};
  bool is_first = true;
  for (int head = 0; head < heads; ++head) {
    for (int row = head; row < query_tile.num_rows; row += heads) {
      if (!of.by_head && row > 0 && query_tile.query[row] == query_tile.query[row - 1]) continue;
      const RowMasks masks = masks_of_row(query_tile, row);
      const bool is_new = is_first || masks != last;
      if (is_new) words_of_row(s.masks, s, masks, key_begin, num_keys, words);
      last = masks;
      is_first = false;
      add_row(of, row, key_begin, num_keys, is_banded, words, is_new, strip);
    }
  }
}

// The same of at most 64 keys and masks that are read by columns.
inline void add_columns(const MapRow& of, const DistinctRows& distinct, int64_t key_begin, int num_keys, bool is_banded,
                        StripWords& strip) {
  const QueryTile& query_tile = of.query_tile;
  const ReadMasks masks = masks_to_read(query_tile.sequence->masks);
  if (is_banded || portable::has_any(masks.by_rows)) {
    uint64_t words[kMaxQueryTileRows];
    words_of_rows(query_tile, distinct, key_begin, num_keys, words);
    for (int row = 0; row < query_tile.num_rows; ++row) {
      add_row(of, row, key_begin, num_keys, is_banded, words + row, true, strip);
    }
    return;
  }
  uint64_t columns[64];
  read_columns(masks.by_columns, *query_tile.sequence, distinct, key_begin, num_keys, columns);
  uint64_t any = 0, all = 0;
  for (int key = 0; key < num_keys; ++key) {
    any |= static_cast<uint64_t>(columns[key] != 0) << key;
    all |= static_cast<uint64_t>(columns[key] == low_bits(distinct.count)) << key;
  }
  strip.any[0] |= any;
  strip.all[0] &= all;
}

// The classes of the tiles of a strip, keys [key_begin, key_begin + num_keys). distinct: null unless masks are read by
// columns.
inline void classify_strip(MapRow& of, int64_t key_begin, int64_t num_keys, const DistinctRows* distinct) {
  const QueryTile& query_tile = of.query_tile;
  // Where the band shows all, or where it is not looked at, seen is any.
  const bool is_banded =
      of.by_query && (key_begin < query_tile.full_begin || key_begin + num_keys > query_tile.full_end);
  const int64_t num_words = (num_keys + 63) / 64;
  StripWords strip;
  for (int64_t n = 0; n < num_words; ++n) {
    strip.any[n] = strip.seen[n] = 0;
    strip.all[n] = ~uint64_t{0};
  }
  if (distinct != nullptr) {
    add_columns(of, *distinct, key_begin, static_cast<int>(num_keys), is_banded, strip);
  } else {
    add_rows(of, key_begin, num_keys, is_banded, strip);
  }
  for (int64_t n = 0; n < num_words; ++n) {
    of.store(key_begin / 64 + n, strip.any[n], strip.all[n], is_banded ? strip.seen[n] : strip.any[n],
             low_bits(num_keys - 64 * n));
  }
}

// Calls use(begin, end) for each range of keys that the band of a query tile reaches, in whole words of keys. The tiles
// of others stay hidden.
template <typename Use>
inline void for_each_range(const MapRow& of, Use&& use) {
  const QueryTile& query_tile = of.query_tile;
  const int64_t len_kv = query_tile.sequence->len_kv;
  if (!of.by_query) return use(int64_t{0}, len_kv);
  const auto rounded_up = [len_kv](int64_t key) {
    return (key + 63) / 64 * 64 < len_kv ? (key + 63) / 64 * 64 : len_kv;
  };
  const int64_t keep_end = rounded_up(query_tile.keep_end);
  const int64_t begin = query_tile.keys_begin / 64 * 64;
  use(int64_t{0}, keep_end);
  use(begin > keep_end ? begin : keep_end, rounded_up(query_tile.keys_end));
}

// Classifies the tiles of neighbouring query tiles. By columns a word of keys goes through all of them before the next
// one: their bytes of a key lie side by side, and those of the next key far away.
inline void classify_tiles(MapRow* map_rows, int num_map_rows) {
  if (num_map_rows == 0) return;
  if (!portable::has_any(masks_to_read(map_rows[0].query_tile.sequence->masks).by_columns)) {
    constexpr int64_t kStrip = 64 * kStripWords;
    for (int row = 0; row < num_map_rows; ++row) {
      for_each_range(map_rows[row], [&](int64_t begin, int64_t end) {
        for (; begin < end; begin += kStrip)
          classify_strip(map_rows[row], begin, std::min(end - begin, kStrip), nullptr);
      });
    }
    return;
  }
  DistinctRows distinct[kMostMapRows];
  int64_t keys_end = 0;
  for (int row = 0; row < num_map_rows; ++row) {
    find_distinct_rows(map_rows[row].query_tile, map_rows[row].query_tile.num_rows, distinct[row]);
    const int64_t len_kv = map_rows[row].query_tile.sequence->len_kv;
    keys_end = len_kv > keys_end ? len_kv : keys_end;
  }
  for (int64_t key = 0; key < keys_end; key += 64) {
    for (int row = 0; row < num_map_rows; ++row) {
      for_each_range(map_rows[row], [&](int64_t begin, int64_t end) {
        if (begin <= key && key < end)
          classify_strip(map_rows[row], key, std::min<int64_t>(end - key, 64), distinct + row);
      });
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessella::cpu
HWY_AFTER_NAMESPACE();
