// How the keys of a sequence are split for decoding: whole tiles, at most so many splits.
#pragma once

#include <algorithm>
#include <cstdint>

#include "reference/ladder/score_tile.hpp"

namespace tessella::reference {

inline constexpr int64_t kMostSplits = 8;

class Splits {
 public:
  explicit Splits(const Head& head) : len_kv_(head.len_kv()) {
    const int64_t tile = tiles(head).kv, num_tiles = (len_kv_ + tile - 1) / tile;
    keys_ = std::max<int64_t>(1, (num_tiles + kMostSplits - 1) / kMostSplits) * tile;
  }
  int64_t count() const { return (len_kv_ + keys_ - 1) / keys_; }
  int64_t begin(int64_t split) const { return split * keys_; }
  int64_t end(int64_t split) const { return std::min(begin(split) + keys_, len_kv_); }

 private:
  int64_t len_kv_;
  int64_t keys_;
};

// Bytes of loading queries and keys where every split meets every tile of queries.
inline double split_bytes(const Head& head, const Splits& splits) {
  double bytes = static_cast<double>(splits.count() * head.len_q()) * head.row_bytes_qk();
  for (int64_t split = 0; split < splits.count(); ++split) {
    for (int64_t i = 0; i < head.len_q(); i += tiles(head).q) {
      const int64_t i_end = std::min(i + tiles(head).q, head.len_q());
      bytes += tile_bytes(head, i, i_end, splits.begin(split), splits.end(split));
    }
  }
  return bytes;
}

}  // namespace tessella::reference
