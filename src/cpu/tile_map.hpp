// The tile map of a call with element masks (portable/element_masks.hpp): what each query tile sees of each tile
// of keys, and which keys no query sees. Made at the start of a run, before any key is read.
//
// A sequence has one map, or one for each KV head if heads differ. Sequences share one where neither masks nor lengths
// differ, and query tiles do where no mask has a query axis: what broadcasts is read once. Tiles count from the
// sequence's first row and key, as those of the kernels do. Maps of packed sequences have the tiles that each sequence
// has, those of others as many as the longest may have.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "cpu/query_tile.hpp"
#include "operations/attention/arguments.hpp"
#include "operations/attention/sequence.hpp"
#include "portable/element_masks.hpp"

namespace tessella::cpu {

// The low `count` bits.
inline uint64_t low_bits(int64_t count) {
  return count >= 64 ? ~uint64_t{0} : count <= 0 ? 0 : (uint64_t{1} << count) - 1;
}

// A query tile's row of a map while it is made.
struct MapRow {
  QueryTile query_tile;
  int tile_keys = 0;
  bool by_query = false;  // else the row is of all queries, whatever their bands
  bool by_head = false;
  TileClass* classes = nullptr;             // hidden before
  std::atomic<uint64_t>* seen = nullptr;    // bits of keys, 64 a word
  std::atomic<uint8_t>* reached = nullptr;  // by tiles of keys
  int32_t num_tiles = 0;                    // that are not hidden

  // Sets the classes of a word of keys: bits of those that the element masks show to any row, to all rows, and that
  // the band shows as well to a row to which they do; valid: those that are keys.
  void store(int64_t word, uint64_t any, uint64_t all, uint64_t seen_keys, uint64_t valid);
};
// Classifies neighbouring rows, at most kMostMapRows. They may be of several sequences and heads.
using ClassifyTiles = void (*)(MapRow* map_rows, int num_map_rows);
inline constexpr int kMostMapRows = 8;

// How element masks are read. By columns: ranges of queries, and dense masks and block maps in whose memory queries lie
// closer than keys, as in a transposed one: a row of such a mask has a cache line for each byte.
struct ReadMasks {
  portable::ElementMasks by_rows, by_columns;
};
ReadMasks masks_to_read(const portable::ElementMasks& of_call);
// Entries of a block map with at most so many keys are read key by key. For entries of 4 keys that took longer.
inline constexpr int64_t kKeysOfSmallEntry = 3;

// Rows of a kernel's query tiles, and keys of its tiles: 32 or 64.
struct MapTiling {
  int rows = 0;
  int keys = 0;
};

class TileMap {
 public:
  TileMap() = default;
  TileMap(const core::AttentionArguments& arguments, const MapTiling& tiling, std::byte* memory);
  // A bound for all calls of this shape.
  static int64_t bytes(const core::AttentionShape& bounds, const MapTiling& tiling);

  void classify(const core::AttentionArguments& arguments, int num_threads, ClassifyTiles of_kernel) const;

  // False without element masks.
  bool exists() const { return heads_ > 0; }
  int tile_keys() const { return tiling_.keys; }
  // Whether the element masks hide keys [key_begin, key_end) from a query tile.
  bool hides(const core::Sequence& s, int64_t kv_head, int64_t query_tile, int64_t key_begin, int64_t key_end) const {
    if (!exists()) return false;
    const TileClass* of = classes(s, kv_head, query_tile);
    int64_t tile = key_begin / tiling_.keys;
    while (tile * tiling_.keys < key_end && of[tile] == TileClass::hidden) ++tile;
    return tile * tiling_.keys >= key_end;
  }
  // Of a query tile; null without element masks.
  const TileClass* classes(const core::Sequence& s, int64_t kv_head, int64_t query_tile) const {
    return exists() ? classes_ + first_class(s, kv_head, query_tile) : nullptr;
  }
  // About the number of scores that packed rows [row_begin, row_end) have in tiles that are not hidden, of a KV head.
  int64_t num_scores(const core::Sequence& s, int64_t row_begin, int64_t row_end) const;
  // Whether the tile of keys is not hidden from some query tile.
  bool is_reached(const core::Sequence& s, int64_t kv_head, int64_t key_tile) const {
    return !exists() || reached_[first_key_tile(s, kv_head) + key_tile].load(std::memory_order_relaxed) != 0;
  }
  // Whether some query of the sequence sees the key, by any head of the KV head.
  bool is_seen(const core::AttentionArguments& arguments, const core::Sequence& s, int64_t kv_head, int64_t key) const;
  // Whether a packed row sees some key.
  bool sees_some_key(const core::AttentionArguments& arguments, const core::Sequence& s, int64_t kv_head,
                     int64_t row) const;

 private:
  // Of all maps.
  TileMap(const core::AttentionShape& shape, const MapTiling& tiling, bool by_batch, bool by_head, bool by_query);
  int64_t take(std::byte* memory);
  // Where a packed sequence begins in the map of a head.
  struct Place {
    int64_t query_tile = 0, key_tile = 0, key_word = 0, tile = 0;  // tile: of classes
  };
  void place_sequences(const core::AttentionArguments& arguments) const;
  void set_to_zero(const core::AttentionArguments& arguments, int num_threads) const;
  // Begins the row of a query tile, with every tile hidden. False where the query tile has no queries.
  bool begin_row(const core::AttentionArguments& arguments, const core::Sequence& s, int64_t kv_head,
                 int64_t query_tile, MapRow& of) const;
  // The sequence of a query tile of a head, and the first query tile of it.
  std::pair<int64_t, int64_t> sequence_of(int64_t query_tile) const;

  int64_t head(int64_t kv_head) const { return by_head_ ? kv_head : 0; }
  int64_t map(const core::Sequence& s, int64_t kv_head) const {
    return head(kv_head) * batches_ + (by_batch_ ? s.batch_idx : 0);
  }
  int64_t row(const core::Sequence& s, int64_t kv_head, int64_t query_tile) const {
    if (is_packed_) {
      return head(kv_head) * query_tiles_ + places_[s.batch_idx].query_tile + (by_query_ ? query_tile : 0);
    }
    if (!by_query_) return map(s, kv_head);
    const int64_t first_row = by_batch_ ? s.batch_idx * sequence_queries_ * group_ : 0;
    const int64_t first = by_batch_ ? first_row / tiling_.rows + s.batch_idx : 0;  // each has one that is not full
    return head(kv_head) * query_tiles_ + first + query_tile;
  }
  int64_t num_key_tiles(const core::Sequence& s) const {
    return is_packed_ ? places_[s.batch_idx + 1].key_tile - places_[s.batch_idx].key_tile : key_tiles_;
  }
  int64_t first_class(const core::Sequence& s, int64_t kv_head, int64_t query_tile) const {
    if (!is_packed_) return row(s, kv_head, query_tile) * key_tiles_;
    return head(kv_head) * tiles_ + places_[s.batch_idx].tile + (by_query_ ? query_tile : 0) * num_key_tiles(s);
  }
  int64_t first_key_tile(const core::Sequence& s, int64_t kv_head) const {
    return is_packed_ ? head(kv_head) * all_key_tiles_ + places_[s.batch_idx].key_tile : map(s, kv_head) * key_tiles_;
  }
  int64_t first_key_word(const core::Sequence& s, int64_t kv_head) const {
    return is_packed_ ? head(kv_head) * all_key_words_ + places_[s.batch_idx].key_word : map(s, kv_head) * key_words_;
  }

  MapTiling tiling_;
  bool by_batch_ = false, by_head_ = false, by_query_ = false;
  bool is_packed_ = false;
  int64_t heads_ = 0;           // that have maps of their own; 0: there is no map
  int64_t batches_ = 0;         // likewise
  int64_t sequence_tiles_ = 0;  // query tiles of the longest sequence
  int64_t key_tiles_ = 0;       // of the longest sequence
  int64_t key_words_ = 0;
  int64_t sequence_queries_ = 0;  // rows of q between sequences
  int64_t group_ = 1;
  // Of all batches of a head; bounds of them where sequences are packed.
  int64_t query_tiles_ = 0, all_key_tiles_ = 0, all_key_words_ = 0, tiles_ = 0;
  Place* places_ = nullptr;                  // [batch + 1] of packed sequences
  TileClass* classes_ = nullptr;             // [heads][query tiles][key tiles]
  int32_t* num_tiles_ = nullptr;             // [heads][query tiles]
  std::atomic<uint64_t>* seen_ = nullptr;    // [heads][batches][key words]
  std::atomic<uint8_t>* reached_ = nullptr;  // [heads][batches][key tiles]
};

}  // namespace tessella::cpu
