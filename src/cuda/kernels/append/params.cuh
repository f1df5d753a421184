// append on a GPU: its configuration, and its only argument.
#pragma once

#include "portable/element.hpp"
#include "portable/integers.hpp"
#include "portable/new_rows.hpp"

namespace tessella::portable {

inline constexpr int32_t kAppendThreads = 256;
inline constexpr int32_t kAppendBlocksPerSm = 4;

struct AppendConfig {
  Element element = Element::bf16;  // of rows
  Element cache = Element::bf16;    // the same, or fewer bits
  bool computes_scales = false;     // of the new rows of quantised caches, else they are given
  bool vectors = false;             // rows are read in pieces of 16 bytes
  bool rotates = false;
  bool interleaved = false;    // neighbours turn together
  bool angles_are_f32 = true;  // else of the element
  bool operator==(const AppendConfig&) const = default;
};

// Elements of a row that a thread moves at once.
constexpr int32_t row_piece(const AppendConfig& c) { return c.vectors ? 16 / size_bytes(c.element) : 1; }
// Elements of a piece that goes into a cache. Two elements of 4 bits form one byte, so one thread must hold both.
constexpr int32_t piece(const AppendConfig& c) { return c.cache == Element::i4 && !c.vectors ? 2 : row_piece(c); }
// Bytes of that piece in a cache.
constexpr int32_t cache_piece_bytes(const AppendConfig& c) { return piece(c) * bits_of(c.cache) / 8; }

// Rows of one of k, v and q; heads 0: absent. Strides in elements.
struct AppendRows {
  const void* from;
  void* into;
  float* scale;  // of a quantised cache
  int64_t from_batch_stride, from_row_stride, from_head_stride;
  int64_t into_batch_stride, into_row_stride, into_head_stride;
  int64_t scale_batch_stride, scale_row_stride, scale_head_stride;  // row stride 0 where one is given for all rows
  int32_t heads, head_dim;
};

struct AppendParams {
  NewRowTables tables;
  AppendRows k, v, q;
  const void* cos;
  const void* sin;
  int64_t cos_stride, sin_stride;  // from a position to the next
  int64_t rows;                    // new rows of all sequences, times the heads of k, v and q together
  int32_t heads;                   // of k, v and q together
  int32_t rotary_dim;
  int32_t log2_lanes;  // threads that have a row together
};

}  // namespace tessella::portable
