// The steps before and behind another forward kernel on a GPU that serve tensors of 8 bits: their configurations, and
// their only arguments. Strides count elements.
#pragma once

#include "portable/divisor.hpp"
#include "portable/element.hpp"
#include "portable/integers.hpp"
#include "portable/operand_params.hpp"

namespace tessella::portable {

inline constexpr int32_t kWidenThreads = 256;
inline constexpr int32_t kWidenBlocksPerSm = 4;  // loads enough in flight for the memory's bandwidth
inline constexpr int32_t kWidenPiece = 16;       // elements that a thread moves at once, if rows allow it

// q, k and v times their scales, as copies in memory.
struct WidenConfig {
  Element from = Element::e4m3;  // or e5m2 or i8
  Element into = Element::bf16;
  bool operator==(const WidenConfig&) const = default;
};

// Out from a result in f32, and amax.
struct NarrowConfig {
  Element out = Element::e4m3;  // f32: the result is out already, and amax alone is written
  bool operator==(const NarrowConfig&) const = default;
};

// Rows of q and out, or of k and v: which sequence they are of, and where their factors lie.
struct WidenRows {
  int64_t batch;  // of the copy; packed: 1
  int64_t rows;   // of a sequence of the copy; packed: of all
  int32_t heads;
  int32_t sequences;
  TableParams cu_seqlens;  // i32, of packed rows
  TableParams lengths;     // i32: rows of a sequence behind its length are of no use; null: all are
  Divisor scale_block;     // rows of one entry of a factor; of value 0: all
};

struct WidenTensor {
  OperandParams from, into;
  int64_t column_stride;  // of from
  OperandParams scale;    // f32; data null: 1
  int32_t head_dim;
  int32_t log2_lanes;  // threads that have a row together
  int32_t vectors;     // rows of both begin at multiples of 16 bytes and are whole pieces
  int32_t is_of_keys;
  int32_t is_transposed;  // from's rows are in another order (sequence_rows.hpp)
};

inline constexpr int32_t kWidenTensors = 3;

struct WidenParams {
  WidenTensor tensors[kWidenTensors];  // head_dim 0: absent
  WidenRows q, kv;
  TableParams page_table;  // of keys in pages, as in SequencesParams
  Divisor page_size;
  int32_t num_pages;
  int32_t slots;
  TableParams cache_batch_idx;
  OperandParams amax;  // f32, set to 0 for the step behind; data null: absent
  int64_t amax_batch, amax_blocks;
};

struct NarrowParams {
  OperandParams result, out;
  OperandParams out_scale, amax;  // f32; data null: absent
  WidenRows rows;
  int32_t head_dim;
  int32_t log2_lanes;
  int32_t vectors;
};

}  // namespace tessella::portable
