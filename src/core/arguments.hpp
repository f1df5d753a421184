// Arguments: one call in normal form. api/ makes it of the user's structs, and kernels read nothing else when they run.
//
// A call's arguments begin with its own shape. The rest changes from run to run: pointers, strides, tables, scalars.
//
// All memory of a call is on its device. On a GPU nobody has read the values of its tables: kernels clamp lengths and
// offsets to the sizes given here, so that no value makes an access leave the tensors.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <variant>
#include <vector>

#include "core/operand.hpp"
#include "core/shape.hpp"

namespace tessella::core {

// The gradients of a backward call; the values are tessella_gradient of tessella.h.
enum class Gradient : uint32_t { dq = 1, dk = 2, dv = 4, d_bias = 8, d_sink = 16, d_alibi_slopes = 32 };

struct AttentionArguments : AttentionShape {
  // q (batch, seqlen_q, heads_q, head_dim_qk); k, v (batch or slots, seqlen_kv, heads_kv, head dim) or (num_pages,
  // page_size, ...); out (batch, seqlen_q, heads_q, head_dim_v); lse (batch, seqlen_q, heads_q, 1), f32, or f64 beside
  // f64; gradients as what they are of, d_lse as lse; scales and amax (batch or page, ceil(rows / scale_block), heads,
  // 1), f32: axes of 1 have stride 0.
  ByName<Operand> tensors;
  Table<int32_t> seqlens_q;        // (batch) valid lengths
  Table<int32_t> seqlens_kv;       // (batch) valid lengths, left padding included
  Table<int32_t> leftpad_kv;       // (batch) first valid slot
  Table<int32_t> cu_seqlens_q;     // (batch + 1) first row of each sequence in the packed tensor
  Table<int32_t> cu_seqlens_kv;    // (batch + 1)
  Table<int32_t> page_table;       // (batch, seqlen_kv / page_size) pages of a sequence, in its order
  int64_t num_pages = 0;           // of k and of v
  Table<int32_t> cache_batch_idx;  // (batch) the slot of k and v that holds a sequence's rows
  int64_t slots = 0;               // with cache_batch_idx, of k and of v
  ScoreOperand bias;               // f32, or the dtype of q
  Table<float> alibi_slopes;       // (batch, heads_q)
  Table<float> sink;               // (heads_q), in at(0, head)
  ScoreOperand dense_mask;         // bool
  ScoreOperand block_map;          // bool, one entry a tile of block_q x block_kv
  ScoreOperand draft_mask;         // bool, (batch, query, drafted key); heads have stride 0
  Table<int32_t> document_q;       // (batch, row); packed: batch stride 0, row of the packed tensor
  Table<int32_t> document_kv;      // (batch, slot)
  Table<int32_t> prefix;           // (batch)
  int64_t block_q = 0;
  int64_t block_kv = 0;
  int64_t window_left = -1;
  int64_t window_right = -1;
  int64_t chunk = 0;
  int64_t keep_first = 0;
  double scale = 0;  // of f64 calls; else a float
  float softcap = 0;
  float dropout = 0;
  uint64_t seed = 0;
  uint64_t offset = 0;
  const int64_t* seed_data = nullptr;  // where the seed lives; on a GPU it replaces `seed`
  const int64_t* offset_data = nullptr;
  int32_t num_arrays = 0;
  UserArray arrays[kMaxUserArrays];
  int64_t first_batch = 0;  // where the call's slice begins in the whole
  int64_t first_head = 0;
  int64_t first_query = 0;
  int64_t first_key = 0;
  int64_t whole_heads_q = 0;        // query heads of the whole; 0: heads_q
  const int32_t* cancel = nullptr;  // a flag on the host; not zero: the call is to end
  void* schedule = nullptr;         // on a GPU, as the plan's kernel made it
  int64_t schedule_bytes = 0;
  // Nothing that the call reads is written by the kernel queued just before, but q.
  bool cache_is_settled = false;

  // For backward; out and lse are then inputs.
  ScoreGradient d_bias;          // f32, or the dtype of bias
  ScoreGradient d_sink;          // (heads_q), f32
  ScoreGradient d_alibi_slopes;  // (heads_q) or (batch, heads_q), f32
  uint32_t accumulate = 0;       // gradients that are added to what is there: bits of Gradient

  Operand& q() { return tensors[Name::q]; }
  Operand& k() { return tensors[Name::k]; }
  Operand& v() { return tensors[Name::v]; }
  Operand& out() { return tensors[Name::out]; }
  Operand& lse() { return tensors[Name::lse]; }
  const Operand& q() const { return tensors[Name::q]; }
  const Operand& k() const { return tensors[Name::k]; }
  const Operand& v() const { return tensors[Name::v]; }
  const Operand& out() const { return tensors[Name::out]; }
  const Operand& lse() const { return tensors[Name::lse]; }

  bool accumulates(Gradient gradient) const { return (accumulate & static_cast<uint32_t>(gradient)) != 0; }

  // The first two axes of q, out and lse; of k and v.
  struct Axes {
    int64_t batch, rows;
  };
  Axes axes_q() const { return {features.has(Feature::packed_q) ? 1 : batch, total_q}; }
  Axes axes_kv() const {
    if (features.has(Feature::paged_kv)) return {num_pages, page_size};
    if (features.has(Feature::cache_batch_idx)) return {slots, total_kv};
    return {features.has(Feature::packed_kv) ? 1 : batch, total_kv};
  }
  // Axes of the scales of a tensor with these axes: one scale for each block of rows; in a packed tensor blocks run
  // over all sequences.
  Axes scale_axes(Axes axes, bool is_packed) const {
    const int64_t blocks = scale_block == 0 ? 1 : axes.rows / scale_block + (axes.rows % scale_block != 0);
    return {is_packed && blocks == 1 ? batch : axes.batch, blocks};
  }
  // The page of a row; row_idx counts as Sequence::row_kv does. Kernels load keys in tiles, which may begin in an
  // evicted page (-1): page 0 stands in for it, as no query sees its rows.
  int64_t page_of(int64_t batch_idx, int64_t row_idx) const {
    return std::max(page_table.at(batch_idx, row_idx / page_size), int32_t{0});
  }
  // First element of one row of one head of t, which is k or v.
  std::byte* row_of(const Operand& t, int64_t batch_idx, int64_t row_idx, int64_t head_idx) const {
    if (page_table) return t.row(page_of(batch_idx, row_idx), row_idx % page_size, head_idx);
    return t.row(cache_batch_idx ? cache_batch_idx.at(batch_idx) : batch_idx, row_idx, head_idx);
  }
  // The scale of that row's elements. t: k_scale or v_scale, which must be given.
  const std::byte* scale_of(const Operand& t, int64_t batch_idx, int64_t row_idx, int64_t head_idx) const {
    const auto block = [&](int64_t row) { return scale_block == 0 ? 0 : row / scale_block; };
    if (page_table) return t.row(page_of(batch_idx, row_idx), block(row_idx % page_size), head_idx);
    return t.row(cache_batch_idx ? cache_batch_idx.at(batch_idx) : batch_idx, block(row_idx), head_idx);
  }
  // The same of q and out: q_scale, out_scale or amax.
  std::byte* scale_of_q(const Operand& t, int64_t batch_idx, int64_t row_idx, int64_t head_idx) const {
    return t.row(batch_idx, scale_block == 0 ? 0 : row_idx / scale_block, head_idx);
  }
};

// The tables that have a number for each sequence, as tessella_forward_args names them. least: of its numbers, where
// that is all that validate() asks.
struct SequenceTable {
  const char* name;
  Table<int32_t> AttentionArguments::*member;
  Feature feature;
  int32_t least = std::numeric_limits<int32_t>::min();
};
inline constexpr SequenceTable kSequenceTables[] = {
    {"seqlens_q", &AttentionArguments::seqlens_q, Feature::seqlens_q},
    {"seqlens_kv", &AttentionArguments::seqlens_kv, Feature::seqlens_kv},
    {"leftpad_kv", &AttentionArguments::leftpad_kv, Feature::leftpad_kv},
    {"prefix_lengths", &AttentionArguments::prefix, Feature::prefix, 0},
    {"cache_batch_idx", &AttentionArguments::cache_batch_idx, Feature::cache_batch_idx},
};

// Fills the members of the call's shape that follow from its operands, masks and arrays.
void derive_shape(AttentionArguments& arguments);
// Fills the members that follow from masks alone: is_contiguous, window_keys and rows_grow.
void derive_mask_shape(AttentionArguments& arguments);

struct MergeArguments : MergeShape {
  struct State {
    Operand out;  // (batch, seqlen, heads, head_dim)
    Operand lse;  // (batch, seqlen, heads, 1), f32, or f64 beside f64
  };
  const int32_t* cancel = nullptr;
  std::vector<State> given;
  State result;  // its lse of dtype none: not written
};

void derive_shape(MergeArguments& arguments);

struct AppendArguments : AppendShape {
  // new: (batch, seqlen_new, heads, head_dim). into: the cache, (slots, seqlen_kv, heads, head_dim) or (num_pages,
  // page_size, ...); of q: q_out, which has the axes of q.
  struct Rows {
    Operand from, into;
    Operand scale;  // of a quantised cache: (slots or pages, 1 or rows, heads, 1), f32; without data there are none
  };
  Rows k_rows, v_rows, q_rows;
  Operand cos, sin;                // (1, positions, 1, rotary_dim / 2), f32 or the dtype of the rows
  int64_t positions = 0;           // that have an angle
  Table<int32_t> seqlens_kv;       // (batch) valid lengths of the cache, new rows included
  Table<int32_t> seqlens_new;      // (batch) rows that are new, the first ones
  Table<int32_t> cu_seqlens_new;   // (batch + 1) first row of each sequence in the packed tensors
  Table<int32_t> page_table;       // (batch, seqlen_kv / page_size)
  Table<int32_t> cache_batch_idx;  // (batch) slot of each sequence in the cache
  Table<int32_t> leftpad_kv;       // (batch)
  Table<int32_t> rotary_offsets;   // (batch) added to positions
  int64_t num_slots = 0;           // of k and of v; paged: pages
  int64_t seqlen_kv = 0;           // rows that a sequence may have in the cache
  int64_t page_size = 0;           // 0: they are not paged
  const int32_t* cancel = nullptr;

  int64_t tokens() const { return cu_seqlens_new ? total_new : batch * seqlen_new; }
  int64_t rows_of_slot() const { return page_size > 0 ? page_size : seqlen_kv; }
};

void derive_shape(AppendArguments& arguments);

struct CopyPagesArguments : CopyPagesShape {
  struct Pool {
    Operand pages;  // (num_pages, rows, heads, head_dim)
    int64_t rows = 0, heads = 0, head_dim = 0;
  };
  std::vector<Pool> given;
  Table<int32_t> pairs;  // (num_pairs, 2) source and target
  const int32_t* cancel = nullptr;
};

void derive_shape(CopyPagesArguments& arguments);

struct QuantizeArguments : QuantizeShape {
  // (batch, seqlen, heads, head_dim). A transposed one has its columns as rows: (batch, head_dim, heads, padded rows).
  Operand from, into;             // x and out
  Operand scale;                  // (batch, ceil(rows / scale_block), heads, 1), f32; without data all are 1
  Operand mean;                   // (batch, 1, heads, head_dim), f32: of x; quantize writes it, dequantize adds it
  Operand k_mean;                 // (batch, 1, mean_heads, head_dim), f32
  Operand lse_shift;              // (batch, seqlen, heads, 1), f32
  Operand cos, sin;               // (1, positions, 1, rotary_dim / 2), f32 or the dtype of x
  int64_t positions = 0;          // that have an angle
  Table<int32_t> cu_seqlens;      // (batch + 1) first row of each sequence in the packed tensors
  Table<int32_t> rotary_offsets;  // (batch) added to positions
  uint64_t hadamard_seed = 0;
  const int32_t* cancel = nullptr;

  int64_t tensor_batch() const { return is_packed ? 1 : batch; }
  // The tensor of 8 bits, and its axes where it is transposed.
  const Operand& quantized() const { return operation == Operation::quantize ? into : from; }
  int64_t padded() const { return whole_tiles(total); }
  // Axes of the scales, of which stride 0 means one entry.
  struct Entries {
    int64_t batch, blocks, heads;
  };
  Entries scale_axes() const {
    const int64_t blocks = scale_block == 0 ? 1 : total / scale_block + (total % scale_block != 0);
    return {is_packed && blocks != 1 ? 1 : batch, blocks, heads};
  }
  // Entries of the scales that differ.
  Entries entries() const {
    const Entries axes = scale_axes();
    return {scale.batch_stride == 0 ? std::min<int64_t>(axes.batch, 1) : axes.batch,
            scale.row_stride == 0 ? std::min<int64_t>(axes.blocks, 1) : axes.blocks,
            scale.head_stride == 0 ? std::min<int64_t>(axes.heads, 1) : axes.heads};
  }
  // The scale of a row of the tensor; null: it is 1.
  float* scale_of(int64_t batch_idx, int64_t row, int64_t head) const {
    if (scale.data == nullptr) return nullptr;
    return reinterpret_cast<float*>(scale.row(batch_idx, scale_block == 0 ? 0 : row / scale_block, head));
  }
};

void derive_shape(QuantizeArguments& arguments);

// The arguments of any operation, as a pointer to the call's.
using Arguments = std::variant<const AttentionArguments*, const MergeArguments*, const AppendArguments*,
                               const CopyPagesArguments*, const QuantizeArguments*>;

inline const AttentionArguments& attention(const Arguments& arguments) {
  return *std::get<const AttentionArguments*>(arguments);
}
inline const MergeArguments& merge(const Arguments& arguments) { return *std::get<const MergeArguments*>(arguments); }
inline const AppendArguments& append(const Arguments& arguments) {
  return *std::get<const AppendArguments*>(arguments);
}
inline const CopyPagesArguments& copy_pages(const Arguments& arguments) {
  return *std::get<const CopyPagesArguments*>(arguments);
}
inline const QuantizeArguments& quantize(const Arguments& arguments) {
  return *std::get<const QuantizeArguments*>(arguments);
}

// The call's own shape.
Shape shape(const Arguments& arguments);

}  // namespace tessella::core
