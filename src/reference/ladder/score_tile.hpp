// A query tile that goes over key tiles, for FlashAttention-2 and the algorithms for decoding. Each has its own softmax
// over the products.
#pragma once

#include <algorithm>
#include <cstdint>

#include "operations/attention/shape.hpp"
#include "reference/ladder/ladder.hpp"
#include "reference/ladder/vector.hpp"

namespace tessella::reference {

class ScoreTile {
 public:
  static int64_t floats(const core::AttentionShape& p) {
    const Tiles tile = tiles(p);
    return p.head_dim_qk + tile.kv * (p.head_dim_qk + p.head_dim_v) + tile.q * (p.head_dim_qk + tile.kv);
  }

  // Takes that many floats of scratch; `rest` is what follows.
  ScoreTile(const Head& head, float* scratch) : head_(head), tile_(tiles(head)) {
    const auto take = [&](int64_t count) {
      float* taken = scratch;
      scratch += count;
      return taken;
    };
    row_ = take(head.head_dim_qk());
    k_ = take(head.head_dim_qk() * tile_.kv);
    v_ = take(tile_.kv * head.head_dim_v());
    q_ = take(tile_.q * head.head_dim_qk());
    products_ = take(tile_.q * tile_.kv);
    rest_ = scratch;
  }

  float* rest() const { return rest_; }

  // At most tiles(head).q queries [begin, end).
  void load_queries(int64_t begin, int64_t end) {
    row_begin_ = begin;
    row_end_ = end;
    for (int64_t i = begin; i < end; ++i) head_.load_q(i, q_ + (i - begin) * head_.head_dim_qk());
  }

  // For every tile of keys [begin, end), begin a multiple of the tile, that the band does not hide from all queries,
  // and every query of the tile: row(r, products, j0, j1, v), its products with keys [j0, j1) and their values.
  template <typename Row>
  void for_each_row(int64_t begin, int64_t end, Row&& row) {
    for (int64_t j0 = begin; j0 < end; j0 += tile_.kv) {
      const int64_t j1 = std::min(j0 + tile_.kv, end);
      const int64_t rows = row_end_ - row_begin_, keys = j1 - j0;
      if (!head_.meets_band(row_begin_, row_end_, j0, j1)) continue;
      head_.load_k_transposed(j0, j1, row_, k_);
      for (int64_t j = j0; j < j1; ++j) head_.load_v(j, v_ + (j - j0) * head_.head_dim_v());
      std::fill(products_, products_ + rows * keys, 0.0F);
      multiply_add(rows, keys, head_.head_dim_qk(), q_, k_, products_, keys);
      for (int64_t r = 0; r < rows; ++r) row(r, products_ + r * keys, j0, j1, v_);
    }
  }

 private:
  const Head& head_;
  Tiles tile_;
  int64_t row_begin_ = 0, row_end_ = 0;
  float *row_, *k_, *v_, *q_, *products_;  // [head_dim_qk], [head_dim_qk][tile.kv], [tile.kv][head_dim_v],
  float* rest_;                            // [tile.q][head_dim_qk], [tile.q][tile.kv]
};

// Bytes of the keys and values that for_each_row loads for queries [row_begin, row_end) and keys [begin, end).
inline double tile_bytes(const Head& head, int64_t row_begin, int64_t row_end, int64_t begin, int64_t end) {
  double bytes = 0;
  for (int64_t j = begin; j < end; j += tiles(head).kv) {
    const int64_t j_end = std::min(j + tiles(head).kv, end);
    if (!head.meets_band(row_begin, row_end, j, j_end)) continue;
    bytes += static_cast<double>(j_end - j) * (head.row_bytes_qk() + head.row_bytes_v());
  }
  return bytes;
}

// FlashAttention-2's step for query i: its products with keys [j0, j1) become P~, and its state O, l, m takes them in.
void online_step(const Head& head, int64_t i, float* products, int64_t j0, int64_t j1, const float* v, float* o,
                 float& l, float& m);

// Divides O by l and returns the LSE.
float finish_row(int64_t dim, float* o, float l, float m);

}  // namespace tessella::reference
