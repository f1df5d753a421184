// append on a GPU: its configuration, and its only argument.
#pragma once

#include "portable/integers.hpp"
#include "portable/new_rows.hpp"
#include "portable/score_config.hpp"

namespace tessella::portable {

inline constexpr int32_t kAppendThreads = 256;
inline constexpr int32_t kAppendBlocksPerSm = 4;

struct AppendConfig {
  Element element = Element::bf16;  // of rows and caches
  bool vectors = false;             // rows are moved in pieces of 16 bytes
  bool rotates = false;
  bool interleaved = false;    // neighbours turn together
  bool angles_are_f32 = true;  // else of the element
  bool operator==(const AppendConfig&) const = default;
};

template <class Visit>
constexpr void fields(const AppendConfig& c, const Visit& visit) {
  visit("element", c.element);
  visit("vectors", c.vectors);
  visit("rotates", c.rotates);
  visit("interleaved", c.interleaved);
  visit("angles_are_f32", c.angles_are_f32);
}

// Elements of a row that a thread moves at once.
constexpr int32_t piece(const AppendConfig& c) { return c.vectors ? 16 / size_bytes(c.element) : 1; }

// Rows of one of k, v and q; heads 0: absent. Strides in elements.
struct AppendRows {
  const void* from;
  void* into;
  int64_t from_batch_stride, from_row_stride, from_head_stride;
  int64_t into_batch_stride, into_row_stride, into_head_stride;
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
