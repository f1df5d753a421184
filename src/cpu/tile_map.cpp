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

// Lengths and bands of their own.
constexpr core::Features kByBatch = Feature::seqlens_q | Feature::seqlens_kv | Feature::leftpad_kv | Feature::packed_q |
                                    Feature::packed_kv | Feature::prefix | Feature::document;
constexpr core::Features kByHead = Feature::dense_mask | Feature::block_map;

bool differs_by_batch(const AttentionArguments& p) {
  return p.features.has_any(kByBatch) || p.dense_mask.batch_stride != 0 || p.block_map.batch_stride != 0 ||
         p.draft_mask.batch_stride != 0;
}
bool differs_by_head(const AttentionArguments& p) {
  return p.dense_mask.head_stride != 0 || p.block_map.head_stride != 0;
}
bool differs_by_query(const AttentionArguments& p) {
  return p.features.has_any(Feature::document | Feature::draft_mask) || p.dense_mask.q_stride != 0 ||
         p.block_map.q_stride != 0;
}

}  // namespace

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
  query_tiles_ = !by_query_ ? batches_ : !by_batch_ ? sequence_tiles_ : packed_rows(p) / tiling.rows + p.batch + 1;
  key_tiles_ = ceil_div(p.seqlen_kv, tiling.keys);
  key_words_ = ceil_div(p.seqlen_kv, 64);
  sequence_queries_ = p.features.has(Feature::packed_q) ? 0 : p.seqlen_q;
}

int64_t TileMap::take(std::byte* memory) {
  int64_t bytes = 0;
  Memory of(memory, bytes);
  of.take(heads_ * query_tiles_ * key_tiles_, classes_);
  of.take(heads_ * query_tiles_, num_tiles_);
  of.take(heads_ * batches_ * key_words_, seen_);
  of.take(heads_ * batches_ * key_tiles_, reached_);
  return bytes;
}

int64_t TileMap::bytes(const AttentionShape& bounds, const MapTiling& tiling) {
  if (!bounds.features.has_any(core::kElementMasks)) return 0;
  return TileMap(bounds, tiling, true, bounds.features.has_any(kByHead), true).take(nullptr);
}

TileMap::TileMap(const AttentionArguments& p, const MapTiling& tiling, std::byte* memory) {
  if (!p.features.has_any(core::kElementMasks)) return;
  *this = TileMap(p, tiling, differs_by_batch(p), differs_by_head(p), differs_by_query(p));
  take(memory);
}

void TileMap::classify(const AttentionArguments& p, int num_threads, ClassifyTiles of_kernel) const {
  if (!exists()) return;
  for (int64_t i = 0; i < heads_ * batches_ * key_words_; ++i) new (seen_ + i) std::atomic<uint64_t>(0);
  for (int64_t i = 0; i < heads_ * batches_ * key_tiles_; ++i) new (reached_ + i) std::atomic<uint8_t>(0);
  parallel_for(heads_ * batches_ * sequence_tiles_, num_threads, p.cancel, [&](int64_t task, int) {
    const int64_t query_tile = task % sequence_tiles_, kv_head = task / sequence_tiles_ / batches_;
    const core::Sequence s = core::sequence(p, task / sequence_tiles_ % batches_);
    const int64_t row_begin = query_tile * tiling_.rows;
    const int64_t most_rows = by_query_ ? tiling_.rows : std::min<int64_t>(group_, tiling_.rows);
    const auto num_rows = static_cast<int>(std::min(s.len_q * group_ - row_begin, most_rows));
    if (num_rows <= 0) return;
    MapRow of{.tile_keys = tiling_.keys, .by_query = by_query_, .by_head = by_head_};
    fill_query_tile(of.query_tile, p, s, kv_head, row_begin, num_rows, num_rows);
    const int64_t idx = row(s, kv_head, query_tile);
    of.classes = classes_ + idx * key_tiles_;
    std::fill_n(of.classes, key_tiles_, TileClass::hidden);
    of.seen = seen_ + map(s, kv_head) * key_words_;
    of.reached = reached_ + map(s, kv_head) * key_tiles_;
    of_kernel(of);
    num_tiles_[idx] = of.num_tiles;
  });
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
  const uint64_t word = seen_[map(s, kv_head) * key_words_ + key / 64].load(std::memory_order_relaxed);
  return (word >> (key % 64) & 1) != 0 && (by_query_ || core::band_sees(s, key));
}

}  // namespace tessella::cpu
