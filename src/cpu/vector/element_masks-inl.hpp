// What the element masks (portable/element_masks.hpp) show, as words: bit n of a row's word is key n of 64.
// Bytes and ids are read along a row, where they lie together, and rows that read the same share their words.
// Transposed masks are read by columns.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "cpu/query_tile.hpp"
#include "cpu/tile_map.hpp"
#include "cpu/vector/exp2-inl.hpp"
#include "hwy/highway.h"
#include "operations/attention/sequence.hpp"
#include "portable/element_masks.hpp"

HWY_BEFORE_NAMESPACE();
namespace tessella::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Bits of lanes, the first one's lowest.
template <class D>
HWY_INLINE uint64_t bits_of(D d, hn::Mask<D> mask) {
  uint8_t bytes[8] = {};
  hn::StoreMaskBits(d, mask, bytes);
  uint64_t bits;
  std::memcpy(&bits, bytes, sizeof bits);
  return bits;
}

// A bit for each of 64 bytes that is not 0.
HWY_INLINE uint64_t bits_of_bytes(const uint8_t* bytes) {
  uint64_t bits = 0;
#if HWY_TARGET == HWY_SCALAR
  for (int i = 0; i < 64; i += 8) {
    uint64_t eight;
    std::memcpy(&eight, bytes + i, sizeof eight);
    constexpr uint64_t kLow = 0x7F7F7F7F7F7F7F7F;
    const uint64_t high = (((eight & kLow) + kLow) | eight) & ~kLow;  // the high bit of each byte that is not 0
    bits |= (high >> 7) * 0x0102040810204080 >> 56 << i;
  }
#else
  const hn::CappedTag<uint8_t, 64> d;
  for (int i = 0; i < 64; i += static_cast<int>(hn::Lanes(d))) {
    bits |= bits_of(d, hn::Ne(hn::LoadU(d, bytes + i), hn::Zero(d))) << i;
  }
#endif
  return bits;
}

// A bit for each of 64 ids that is `id`.
HWY_INLINE uint64_t bits_of_ids(const int32_t* ids, int32_t id) {
  uint64_t bits = 0;
  const hn::CappedTag<int32_t, 64> d;
  for (int i = 0; i < 64; i += static_cast<int>(hn::Lanes(d))) {
    bits |= bits_of(d, hn::Eq(hn::LoadU(d, ids + i), hn::Set(d, id))) << i;
  }
  return bits;
}

// words[n] &= bits(elements of keys 64 n to 64 n + 63), of num_keys keys. An element serves `element_keys` keys, and
// the first one has served `skipped` keys before. Elements begin at `from`, `stride` apart; those past the keys are not
// read.
template <typename T, typename Bits>
HWY_INLINE void and_elements(const T* from, int64_t stride, int64_t element_keys, int64_t skipped, int64_t num_keys,
                             uint64_t* words, Bits&& bits) {
  const int64_t whole = stride == 1 && element_keys == 1 ? num_keys / 64 : 0;
  for (int64_t n = 0; n < whole; ++n) words[n] &= bits(from + 64 * n);
  from += 64 * whole;
  T together[64] = {};
  if (stride == 0 && num_keys > 0) std::fill_n(together, 64, *from);
  int64_t left = element_keys - skipped;
  for (int64_t n = whole; 64 * n < num_keys; ++n) {
    const int64_t count = num_keys - 64 * n < 64 ? num_keys - 64 * n : 64;
    for (int64_t i = 0; stride != 0 && i < count; ++i) {
      together[i] = *from;
      if (--left > 0) continue;
      from += stride;
      left = element_keys;
    }
    words[n] &= bits(together);  // bits past num_keys are 0 already
  }
}

// Likewise for entries of many keys each.
HWY_INLINE void and_blocks(const uint8_t* entry, int64_t stride, int64_t block_kv, int64_t skipped, int64_t num_keys,
                           uint64_t* words) {
  for (int64_t key = 0; key < num_keys; entry += stride, skipped = 0) {
    const int64_t left = key + block_kv - skipped;
    const int64_t end = left < num_keys ? left : num_keys;
    if (*entry != 0) {
      key = end;
      continue;
    }
    while (key < end) {
      const int64_t stop = (key / 64 + 1) * 64 < end ? (key / 64 + 1) * 64 : end;
      words[key / 64] &= ~(low_bits(stop - key) << (key % 64));
      key = stop;
    }
  }
}

// The numbers by which the masks know a row: equal for rows that see the same keys.
struct RowMasks {
  int64_t of[portable::kMostElementMasks];
  bool operator==(const RowMasks&) const = default;
};

inline RowMasks masks_of_row(const QueryTile& query_tile, int row) {
  const core::Sequence& s = *query_tile.sequence;
  RowMasks rows = {};
  portable::for_each_given(s.masks, [&](const auto& mask, int32_t idx) {
    rows.of[idx] = mask.row(s, s.batch_idx, query_tile.head[row], query_tile.query[row]);
  });
  return rows;
}

// words[n] &= what a mask shows of keys 64 n to 64 n + 63, of num_keys from key_begin on, to a row of this number.
template <class Mask>
void and_mask(const Mask& mask, const core::Sequence& s, int64_t row, int64_t key_begin, int64_t num_keys,
              uint64_t* words) {
  for (int64_t key = 0; key < num_keys; ++key) {
    if (!mask.sees(s, s.batch_idx, row, key_begin + key)) words[key / 64] &= ~(uint64_t{1} << (key % 64));
  }
}

inline void and_mask(const portable::Documents& documents, const core::Sequence& s, int64_t row, int64_t key_begin,
                     int64_t num_keys, uint64_t* words) {
  const portable::Documents::Ids& ids = documents.kv;
  const auto id = static_cast<int32_t>(row);
  and_elements(ids.data + s.batch_idx * ids.batch_stride + (s.row_kv + key_begin) * ids.stride, ids.stride, 1, 0,
               num_keys, words, [&](const int32_t* of_keys) HWY_ATTR { return bits_of_ids(of_keys, id); });
}

inline void and_bytes(const uint8_t* bytes, int64_t stride, int64_t element_keys, int64_t skipped, int64_t num_keys,
                      uint64_t* words) {
  and_elements(bytes, stride, element_keys, skipped, num_keys, words,
               [](const uint8_t* of_keys) HWY_ATTR { return bits_of_bytes(of_keys); });
}

inline void and_mask(const portable::DenseMask& mask, const core::Sequence& s, int64_t row, int64_t key_begin,
                     int64_t num_keys, uint64_t* words) {
  const uint8_t* first = mask.data + row + (s.slot_kv + key_begin) * mask.kv_stride;
  and_bytes(first, mask.kv_stride, 1, 0, num_keys, words);
}

inline void and_mask(const portable::BlockMap& map, const core::Sequence& s, int64_t row, int64_t key_begin,
                     int64_t num_keys, uint64_t* words) {
  const int64_t slot = s.slot_kv + key_begin, block_kv = map.block_kv.value;
  const uint8_t* first = map.data + row + slot / block_kv * map.kv_stride;
  if (block_kv <= kKeysOfSmallEntry) {
    and_bytes(first, map.kv_stride, block_kv, slot % block_kv, num_keys, words);
  } else {
    and_blocks(first, map.kv_stride, block_kv, slot % block_kv, num_keys, words);
  }
}

// Drafts begin at any key, and words at every 64th.
inline void and_mask(const portable::DraftMask& mask, const core::Sequence& s, int64_t row, int64_t key_begin,
                     int64_t num_keys, uint64_t* words) {
  const int64_t first_draft = s.len_kv - s.len_q;
  int64_t key = first_draft > key_begin ? first_draft - key_begin : 0;
  for (; key < num_keys && key % 64 != 0; ++key) {
    if (!mask.sees(s, s.batch_idx, row, key_begin + key)) words[key / 64] &= ~(uint64_t{1} << (key % 64));
  }
  if (key >= num_keys) return;
  const uint8_t* first = mask.data + row + (key_begin + key - first_draft) * mask.kv_stride;
  and_bytes(first, mask.kv_stride, 1, 0, num_keys - key, words + key / 64);
}

inline void and_mask(const portable::KeyRanges& ranges, const core::Sequence& s, int64_t row, int64_t key_begin,
                     int64_t num_keys, uint64_t* words) {
  for (int64_t key = 0; key < num_keys; key += 64) {
    const int64_t slot = s.slot_kv + key_begin + key;
    uint64_t shown = 0;
    for (const int32_t* range = ranges.data + row; range < ranges.data + row + 2 * ranges.count; range += 2) {
      shown |= low_bits(range[1] - slot) & ~low_bits(range[0] - slot);
    }
    words[key / 64] &= shown;
  }
}

// Words of keys [key_begin, key_begin + num_keys) for one row, by some masks of the sequence.
inline void words_of_row(const portable::ElementMasks& masks, const core::Sequence& s, const RowMasks& rows,
                         int64_t key_begin, int64_t num_keys, uint64_t* words) {
  std::fill_n(words, num_keys / 64, ~uint64_t{0});
  if (num_keys % 64 != 0) words[num_keys / 64] = low_bits(num_keys % 64);
  portable::for_each_given(masks, [&](const auto& mask, int32_t idx)
                                      HWY_ATTR { and_mask(mask, s, rows.of[idx], key_begin, num_keys, words); });
}

// A bit for each of `count` bytes, kMostLanes to 64, that is not 0.
template <size_t kMostLanes>
HWY_INLINE uint64_t bits_of_bytes(const uint8_t* bytes, int count) {
  const hn::CappedTag<uint8_t, kMostLanes> d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  uint64_t bits = 0;
  for (int i = 0; i < count; i += lanes) {
    const int first = i + lanes <= count ? i : count - lanes;
    bits |= bits_of(d, hn::Ne(hn::LoadU(d, bytes + first), hn::Zero(d))) << first;
  }
  return bits;
}

// A bit for each of `count` bytes, at most 64, at data + rows[row], that is not 0.
HWY_INLINE uint64_t bits_of_rows(const uint8_t* data, const int64_t* rows, int count) {
  uint64_t bits = 0;
  for (int row = 0; row < count; ++row) bits |= static_cast<uint64_t>(data[rows[row]] != 0) << row;
  return bits;
}

// Bit i of words[j] becomes bit j of words[i], of 64 words: blocks of half the size at a time change places.
inline void transpose_bits(uint64_t* words) {
  uint64_t low = low_bits(32);
  for (int size = 32; size > 0; size /= 2, low ^= low << size) {
    for (int first = 0; first < 64; first += 2 * size) {
      for (int i = first; i < first + size; ++i) {
        const uint64_t changed = (words[i] >> size ^ words[i + size]) & low;
        words[i] ^= changed << size;
        words[i + size] ^= changed;
      }
    }
  }
}

// Into L2: keys lie so far apart that in L1 most of 64 would share a set. `bytes`: at most 64, which may lie past the
// mask's end.
HWY_INLINE void prefetch_column(const uint8_t* column, int bytes) {
  __builtin_prefetch(column, 0, 2);
  __builtin_prefetch(column + bytes - 1, 0, 2);
}

// columns[key] &= bits of `count` rows, which begin at data + rows[row], of at most 64 keys. Elements are as in
// and_elements(). Where these are 64 keys, the bytes of the next 64 are prefetched.
inline void and_columns(const uint8_t* data, int64_t stride, int64_t element_keys, int64_t skipped, const int64_t* rows,
                        int count, int num_keys, uint64_t* columns) {
  bool are_neighbours = true;
  for (int row = 1; row < count; ++row) are_neighbours = are_neighbours && rows[row] == rows[0] + row;
  const int64_t next = 64 / element_keys * stride;
  for (int key = 0; key < num_keys; data += stride, skipped = 0) {
    const uint64_t column = !are_neighbours || count < 4 ? bits_of_rows(data, rows, count)
                            : count < 8                  ? bits_of_bytes<4>(data + rows[0], count)
                            : count < 16                 ? bits_of_bytes<8>(data + rows[0], count)
                            : count < 32                 ? bits_of_bytes<16>(data + rows[0], count)
                                                         : bits_of_bytes<32>(data + rows[0], count);
    if (are_neighbours && num_keys == 64) prefetch_column(data + next + rows[0], count);
    const int64_t end = key + element_keys - skipped;
    while (key < num_keys && key < end) columns[key++] &= column;
  }
}

// The rows of a query tile without those that see the same as the row before: heads of a broadcast mask, queries of one
// block or document.
struct DistinctRows {
  RowMasks masks[kMaxQueryTileRows];
  int count = 0;               // of masks
  int idx[kMaxQueryTileRows];  // of each row, in masks
  int num_rows = 0;
};

inline void find_distinct_rows(const QueryTile& query_tile, int num_rows, DistinctRows& distinct) {
  distinct.count = 0;
  distinct.num_rows = num_rows;
  for (int row = 0; row < num_rows; ++row) {
    const RowMasks masks = masks_of_row(query_tile, row);
    if (row == 0 || masks != distinct.masks[distinct.count - 1]) distinct.masks[distinct.count++] = masks;
    distinct.idx[row] = distinct.count - 1;
  }
}

// columns[key] of at most 64 keys &= a bit for each of the rows of these numbers, what a mask shows them.
template <class Mask>
void and_mask_by_columns(const Mask& mask, const core::Sequence& s, const int64_t* rows, int num_rows,
                         int64_t key_begin, int num_keys, uint64_t* columns) {
  for (int key = 0; key < num_keys; ++key) {
    for (int row = 0; row < num_rows; ++row) {
      if (!mask.sees(s, s.batch_idx, rows[row], key_begin + key)) columns[key] &= ~(uint64_t{1} << row);
    }
  }
}

inline void and_mask_by_columns(const portable::DenseMask& mask, const core::Sequence& s, const int64_t* rows,
                                int num_rows, int64_t key_begin, int num_keys, uint64_t* columns) {
  const uint8_t* first = mask.data + (s.slot_kv + key_begin) * mask.kv_stride;
  and_columns(first, mask.kv_stride, 1, 0, rows, num_rows, num_keys, columns);
}

inline void and_mask_by_columns(const portable::BlockMap& map, const core::Sequence& s, const int64_t* rows,
                                int num_rows, int64_t key_begin, int num_keys, uint64_t* columns) {
  const int64_t slot = s.slot_kv + key_begin, block_kv = map.block_kv.value;
  const uint8_t* first = map.data + slot / block_kv * map.kv_stride;
  and_columns(first, map.kv_stride, block_kv, slot % block_kv, rows, num_rows, num_keys, columns);
}

// The heads see the same, and queries never fall from row to row.
inline void and_mask_by_columns(const portable::QueryRanges& ranges, const core::Sequence& s, const int64_t* rows,
                                int num_rows, int64_t key_begin, int num_keys, uint64_t* columns) {
  const auto rows_before = [&](int64_t query) -> int64_t {  // most often none or all
    if (query <= rows[0]) return 0;
    return query > rows[num_rows - 1] ? num_rows : std::lower_bound(rows, rows + num_rows, query) - rows;
  };
  for (int key = 0; key < num_keys; ++key) {
    const int32_t* first = ranges.data + ranges.ranges_of(s, s.batch_idx, rows[0], key_begin + key);
    uint64_t shown = 0;
    for (const int32_t* range = first; range < first + 2 * ranges.count; range += 2) {
      shown |= low_bits(rows_before(range[1])) & ~low_bits(rows_before(range[0]));
    }
    columns[key] &= shown;
  }
}

// columns[key] of at most 64 keys: a bit for each distinct row, by these masks.
inline void read_columns(const portable::ElementMasks& by_columns, const core::Sequence& s,
                         const DistinctRows& distinct, int64_t key_begin, int num_keys, uint64_t* columns) {
  std::fill_n(columns, num_keys, low_bits(distinct.count));
  portable::for_each_given(by_columns, [&](const auto& mask, int32_t idx) HWY_ATTR {
    int64_t rows[kMaxQueryTileRows];
    for (int row = 0; row < distinct.count; ++row) rows[row] = distinct.masks[row].of[idx];
    and_mask_by_columns(mask, s, rows, distinct.count, key_begin, num_keys, columns);
  });
}

// words[row] of at most 64 keys, for the rows that were told apart.
inline void words_of_rows(const QueryTile& query_tile, const DistinctRows& distinct, int64_t key_begin, int num_keys,
                          uint64_t* words) {
  const core::Sequence& s = *query_tile.sequence;
  const ReadMasks masks = masks_to_read(s.masks);
  uint64_t of_distinct[kMaxQueryTileRows];
  for (int row = 0; row < distinct.count; ++row) {
    words_of_row(masks.by_rows, s, distinct.masks[row], key_begin, num_keys, of_distinct + row);
  }
  if (portable::has_any(masks.by_columns)) {
    uint64_t columns[64] = {};
    read_columns(masks.by_columns, s, distinct, key_begin, num_keys, columns);
    transpose_bits(columns);
    for (int row = 0; row < distinct.count; ++row) of_distinct[row] &= columns[row];
  }
  for (int row = 0; row < distinct.num_rows; ++row) words[row] = of_distinct[distinct.idx[row]];
}

// The class of at most 64 keys.
inline TileClass classify_tile(const QueryTile& query_tile, int64_t key_begin, int num_keys) {
  if (!portable::has_any(query_tile.sequence->masks)) return TileClass::full;
  DistinctRows distinct;
  find_distinct_rows(query_tile, query_tile.num_rows, distinct);
  uint64_t words[kMaxQueryTileRows];
  words_of_rows(query_tile, distinct, key_begin, num_keys, words);
  uint64_t any = 0, all = ~uint64_t{0};
  for (int row = 0; row < query_tile.num_rows; ++row) {
    any |= words[row];
    all &= words[row];
  }
  return any == 0 ? TileClass::hidden : all == low_bits(num_keys) ? TileClass::full : TileClass::partial;
}

// -inf where an element mask hides one of at most 64 keys.
template <typename Real>
void apply_element_masks(const QueryTile& query_tile, int lanes, Real* scores, int64_t key_begin, int num_keys) {
  constexpr int kBits = 8 * sizeof(Real);  // of a row's word that a lane holds
  using Word = hwy::MakeUnsigned<Real>;
  alignas(64) uint64_t words[kMaxQueryTileRows];
  alignas(64) Word of_lanes[kMaxQueryTileRows];
  DistinctRows distinct;
  find_distinct_rows(query_tile, lanes, distinct);
  words_of_rows(query_tile, distinct, key_begin, num_keys, words);
  const Tag<Real> d;
  const hn::RebindToUnsigned<Tag<Real>> du;
  const Vec<Real> hidden = hn::Set(d, -std::numeric_limits<Real>::infinity());
  for (int first = 0; first < num_keys; first += kBits) {
    for (int row = 0; row < lanes; ++row) of_lanes[row] = static_cast<Word>(words[row] >> first);
    const int count = num_keys - first < kBits ? num_keys - first : kBits;
    for (int row = 0; row < lanes; row += kLanes<Real>) {
      const auto word = hn::Load(du, of_lanes + row);
      Real* score = scores + first * lanes + row;
      for (int key = 0; key < count; ++key, score += lanes) {
        const Mask<Real> is_seen = hn::RebindMask(d, hn::TestBit(word, hn::Set(du, Word{1} << key)));
        hn::Store(hn::IfThenElse(is_seen, hn::Load(d, score), hidden), d, score);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessella::cpu
HWY_AFTER_NAMESPACE();
