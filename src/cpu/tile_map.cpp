#include "cpu/tile_map.hpp"

#include <algorithm>
#include <limits>
#include <new>

#include "cpu/memory.hpp"
#include "cpu/parallel.hpp"
#include "cpu/work_tiles.hpp"

namespace tessella::cpu {
namespace {

using core::AttentionArguments;
using core::AttentionShape;
using core::Feature;
using portable::ElementMasks;

// Lengths and bands of their own.
constexpr core::Features kByBatch = Feature::seqlens_q | Feature::seqlens_kv | Feature::leftpad_kv | Feature::packed_q |
                                    Feature::packed_kv | Feature::prefix;

}  // namespace

ReadMasks masks_to_read(const ElementMasks& of_call) {
  ReadMasks masks{.by_rows = of_call, .by_columns = {}};
  const auto is_transposed = [](const portable::MaskTensor& mask) {
    return mask.q_stride > 0 && mask.q_stride < mask.kv_stride;
  };
  const auto move_to_columns = [&](auto member) {
    masks.by_columns.*member = masks.by_rows.*member;
    masks.by_rows.*member = {};
  };
  if (is_transposed(masks.by_rows.dense_mask)) move_to_columns(&ElementMasks::dense_mask);
  const portable::BlockMap& map = masks.by_rows.block_map;
  if (is_transposed(map) && map.block_kv.value <= kKeysOfSmallEntry) move_to_columns(&ElementMasks::block_map);
  if (!masks.by_rows.query_ranges.by_head()) move_to_columns(&ElementMasks::query_ranges);
  return masks;
}

void MapRow::store(int64_t word, uint64_t any, uint64_t all, uint64_t seen_keys, uint64_t valid) {
  for (int bit = 0; bit < 64; bit += tile_keys) {
    const uint64_t tile = low_bits(tile_keys) << bit;
    if ((any & tile) == 0) continue;
    const int64_t idx = (64 * word + bit) / tile_keys;
    classes[idx] = (all & tile) == (valid & tile) ? TileClass::full : TileClass::partial;
    reached[idx].store(1, std::memory_order_relaxed);
    ++num_tiles;
  }
  // Most rows add nothing, and then write nothing that other threads read.
  if ((seen_keys & ~seen[word].load(std::memory_order_relaxed)) != 0) {
    seen[word].fetch_or(seen_keys, std::memory_order_relaxed);
  }
}

TileMap::TileMap(const AttentionShape& p, const MapTiling& tiling, bool by_batch, bool by_head, bool by_query)
    : tiling_(tiling), by_batch_(by_batch), by_head_(by_head), by_query_(by_query), group_(p.group()) {
  // A row of all queries has every head of its group.
  if (by_head_ && group_ > tiling.rows) by_query_ = true;
  heads_ = by_head_ ? p.heads_kv : 1;
  batches_ = by_batch_ ? p.batch : std::min<int64_t>(p.batch, 1);
  sequence_tiles_ = by_query_ ? ceil_div(p.seqlen_q * group_, tiling.rows) : 1;
  key_tiles_ = ceil_div(p.seqlen_kv, tiling.keys);
  key_words_ = ceil_div(p.seqlen_kv, 64);
  sequence_queries_ = p.seqlen_q;
  is_packed_ = p.features.has_any(Feature::packed_q | Feature::packed_kv);
  if (!is_packed_) {
    query_tiles_ = !by_query_ ? batches_ : !by_batch_ ? sequence_tiles_ : packed_rows(p) / tiling.rows + p.batch + 1;
    all_key_tiles_ = batches_ * key_tiles_;
    all_key_words_ = batches_ * key_words_;
    tiles_ = query_tiles_ * key_tiles_;
    return;
  }
  // A sequence has full tiles, and at most one that is not full. The full ones of query tiles times those of keys are
  // at most as many as if all sequences were as long as one may be, in rows or in keys.
  const int64_t keys = p.features.has(Feature::packed_kv) ? p.total_kv : p.batch * p.seqlen_kv;
  const int64_t full_q = by_query_ ? packed_rows(p) / tiling.rows : 0;
  const int64_t full_kv = keys / tiling.keys;
  const int64_t full_pairs =
      std::min(full_q * (p.seqlen_kv / tiling.keys), p.seqlen_q * group_ / tiling.rows * full_kv);
  query_tiles_ = full_q + p.batch;
  all_key_tiles_ = full_kv + p.batch;
  all_key_words_ = keys / 64 + p.batch;
  tiles_ = full_pairs + full_q + full_kv + p.batch;
}

int64_t TileMap::take(std::byte* memory) {
  int64_t bytes = 0;
  Memory of(memory, bytes);
  of.take(is_packed_ ? batches_ + 1 : 0, places_);
  of.take(heads_ * tiles_, classes_);
  of.take(heads_ * query_tiles_, num_tiles_);
  of.take(heads_ * all_key_words_, seen_);
  of.take(heads_ * all_key_tiles_, reached_);
  return bytes;
}

int64_t TileMap::bytes(const AttentionShape& bounds, const MapTiling& tiling) {
  if (!bounds.features.has_any(core::kElementMasks)) return 0;
  const bool by_head = portable::may_differ_by_head(core::element_mask_set(bounds.features));
  return TileMap(bounds, tiling, true, by_head, true).take(nullptr);
}

TileMap::TileMap(const AttentionArguments& p, const MapTiling& tiling, std::byte* memory) {
  if (!p.features.has_any(core::kElementMasks)) return;
  bool by_batch = p.features.has_any(kByBatch), by_head = false, by_query = false;
  portable::for_each_given(core::element_masks(p), [&](const auto& mask, int32_t) {
    by_batch = by_batch || mask.by_batch();
    by_head = by_head || mask.by_head();
    by_query = by_query || mask.by_query();
  });
  *this = TileMap(p, tiling, by_batch, by_head, by_query);
  take(memory);
  if (is_packed_) place_sequences(p);
}

void TileMap::place_sequences(const AttentionArguments& p) const {
  Place next;
  for (int64_t b = 0; b < batches_; ++b) {
    new (places_ + b) Place(next);
    const core::Sequence s = core::sequence(p, b);
    const int64_t query_tiles = by_query_ ? ceil_div(s.len_q * group_, tiling_.rows) : 1;
    const int64_t key_tiles = ceil_div(s.len_kv, tiling_.keys);
    next.query_tile += query_tiles;
    next.key_tile += key_tiles;
    next.key_word += ceil_div(s.len_kv, 64);
    next.tile += query_tiles * key_tiles;
  }
  new (places_ + batches_) Place(next);
}

std::pair<int64_t, int64_t> TileMap::sequence_of(int64_t query_tile) const {
  if (!is_packed_) return {query_tile / sequence_tiles_, query_tile / sequence_tiles_ * sequence_tiles_};
  const Place* after = std::upper_bound(places_, places_ + batches_, query_tile,
                                        [](int64_t tile, const Place& place) { return tile < place.query_tile; });
  return {after - places_ - 1, after[-1].query_tile};
}

void TileMap::set_to_zero(const AttentionArguments& p, int num_threads) const {
  constexpr int64_t kWordsPerTask = int64_t{1} << 14;
  const int64_t words = heads_ * all_key_words_, tiles = heads_ * all_key_tiles_;
  const int64_t tiles_per_task = kWordsPerTask * 64 / tiling_.keys;
  const int64_t tasks = std::max(ceil_div(words, kWordsPerTask), ceil_div(tiles, tiles_per_task));
  parallel_for(tasks, num_threads, p.cancel, [&](int64_t task, int) {
    for (int64_t i = task * kWordsPerTask; i < std::min((task + 1) * kWordsPerTask, words); ++i) {
      new (seen_ + i) std::atomic<uint64_t>(0);
    }
    for (int64_t i = task * tiles_per_task; i < std::min((task + 1) * tiles_per_task, tiles); ++i) {
      new (reached_ + i) std::atomic<uint8_t>(0);
    }
  });
}

void TileMap::classify(const AttentionArguments& p, int num_threads, ClassifyTiles of_kernel) const {
  if (!exists()) return;
  set_to_zero(p, num_threads);
  const int64_t head_rows = is_packed_ ? places_[batches_].query_tile : batches_ * sequence_tiles_;
  const int64_t rows = heads_ * head_rows;
  const bool by_columns = portable::has_any(masks_to_read(core::element_masks(p)).by_columns);
  const int64_t most = by_columns ? std::clamp<int64_t>(rows / (4 * num_threads), 1, kMostMapRows) : 1;
  parallel_for(ceil_div(rows, most), num_threads, p.cancel, [&](int64_t task, int) {
    core::Sequence sequences[kMostMapRows];
    MapRow map_rows[kMostMapRows];
    int64_t places[kMostMapRows];  // in num_tiles_
    int count = 0;
    for (int64_t i = task * most; i < std::min((task + 1) * most, rows); ++i) {
      const int64_t kv_head = i / head_rows;
      const auto [batch_idx, first_tile] = sequence_of(i % head_rows);
      const int64_t query_tile = i % head_rows - first_tile;
      core::Sequence& s = sequences[count];
      s = core::sequence(p, batch_idx);
      if (!begin_row(p, s, kv_head, query_tile, map_rows[count])) continue;
      places[count++] = row(s, kv_head, query_tile);
    }
    of_kernel(map_rows, count);
    for (int i = 0; i < count; ++i) num_tiles_[places[i]] = map_rows[i].num_tiles;
  });
}

bool TileMap::begin_row(const AttentionArguments& p, const core::Sequence& s, int64_t kv_head, int64_t query_tile,
                        MapRow& of) const {
  const int64_t row_begin = query_tile * tiling_.rows;
  const int64_t most_rows = by_query_ ? tiling_.rows : std::min<int64_t>(group_, tiling_.rows);
  const auto num_rows = static_cast<int>(std::min(s.len_q * group_ - row_begin, most_rows));
  if (num_rows <= 0) return false;
  of.tile_keys = tiling_.keys;
  of.by_query = by_query_;
  of.by_head = by_head_;
  fill_query_tile(of.query_tile, p, s, kv_head, row_begin, num_rows, num_rows);
  of.classes = classes_ + first_class(s, kv_head, query_tile);
  std::fill_n(of.classes, num_key_tiles(s), TileClass::hidden);
  of.seen = seen_ + first_key_word(s, kv_head);
  of.reached = reached_ + first_key_tile(s, kv_head);
  return true;
}

int64_t TileMap::num_scores(const core::Sequence& s, int64_t row_begin, int64_t row_end) const {
  if (!exists()) return std::numeric_limits<int64_t>::max();
  int64_t tiles = 0;
  for (int64_t head = 0; head < heads_; ++head) {
    for (int64_t row_idx = row_begin; row_idx < row_end; row_idx += tiling_.rows) {
      tiles += num_tiles_[row(s, head, row_idx / tiling_.rows)];
    }
  }
  return tiles * tiling_.rows * tiling_.keys / heads_;
}

bool TileMap::is_seen(const AttentionArguments& p, const core::Sequence& s, int64_t kv_head, int64_t key) const {
  if (!exists()) return core::seen_by_any_query(p, s, kv_head, key);
  const uint64_t word = seen_[first_key_word(s, kv_head) + key / 64].load(std::memory_order_relaxed);
  return (word >> (key % 64) & 1) != 0 && (by_query_ || core::band_sees(s, key));
}

bool TileMap::sees_some_key(const AttentionArguments& p, const core::Sequence& s, int64_t kv_head,
                            int64_t packed_row) const {
  const int64_t query = packed_row / p.group(), head_idx = kv_head * p.group() + packed_row % p.group();
  const int64_t begin = s.band.begin(query), end = s.band.end(query), keep_end = std::min(p.keep_first, end);
  if (!exists()) return begin < end || keep_end > 0;
  const TileClass* of = classes(s, kv_head, packed_row / tiling_.rows);
  const auto sees_some = [&](int64_t key, int64_t keys_end) {
    while (key < keys_end) {
      if (of[key / tiling_.keys] == TileClass::hidden) {
        key = (key / tiling_.keys + 1) * tiling_.keys;
      } else if (core::element_visible(s, head_idx, query, key++)) {
        return true;
      }
    }
    return false;
  };
  return sees_some(0, keep_end) || sees_some(begin, end);
}

}  // namespace tessella::cpu
