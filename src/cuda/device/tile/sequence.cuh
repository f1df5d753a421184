// One sequence of the batch in its own coordinates, as operations/attention/sequence.hpp on the host, and the tensors'
// rows it owns.
// Tables live in device memory and are not checked by the host: every value is clamped to what the tensors hold.
#pragma once

#include "portable/band.hpp"
#include "portable/masks_params.hpp"
#include "portable/sequences_params.hpp"

namespace tessella::device {

__device__ __forceinline__ int32_t clamp(int32_t value, int32_t low, int32_t high) {
  return value < low ? low : value > high ? high : value;
}

__device__ __forceinline__ int32_t entry(const portable::TableParams& table, int64_t idx) {
  return static_cast<const int32_t*>(table.data)[idx * table.stride];
}

struct Sequence {
  int32_t row_q;    // row of the q and out tensors that holds query 0
  int32_t slots_q;  // rows from row_q that belong to the sequence; those past len_q have output 0, lse -inf
  int32_t len_q;    // queries
  int32_t row_kv;   // row of the k and v tensors, or of the sequence's pages, that holds key 0
  int32_t slot_kv;  // index of key 0 on the key axis of bias, dense mask and block map
  int32_t len_kv;   // keys
};

// Int: see portable::BasicBand.
template <class Int>
struct BandedSequence : Sequence {
  portable::BasicBand<Int> band;
};

// Applies the tables to a sequence that so far is as long as the tensors.
template <class Int>
__device__ __forceinline__ void read_tables(const portable::SequencesParams& p, int32_t batch_idx,
                                            BandedSequence<Int>& s) {
  if (p.cu_seqlens_q.data != nullptr) {
    s.row_q = clamp(entry(p.cu_seqlens_q, batch_idx), 0, p.total_q);
    const int32_t end =
        batch_idx < p.batch ? clamp(entry(p.cu_seqlens_q, batch_idx + 1), s.row_q, p.total_q) : p.total_q;
    s.slots_q = end - s.row_q;
  }
  s.len_q = min(s.slots_q, p.seqlen_q);  // the caller's bound, which bias, masks and the tile map are made for
  if (batch_idx == p.batch) {
    s.len_q = s.len_kv = 0;
    return;
  }
  if (p.seqlens_q.data != nullptr) s.len_q = clamp(entry(p.seqlens_q, batch_idx), 0, s.len_q);

  int32_t slots_kv = p.seqlen_kv;
  if (p.cu_seqlens_kv.data != nullptr) {
    s.row_kv = clamp(entry(p.cu_seqlens_kv, batch_idx), 0, p.total_kv);
    slots_kv = min(clamp(entry(p.cu_seqlens_kv, batch_idx + 1), s.row_kv, p.total_kv) - s.row_kv, p.seqlen_kv);
  }
  if (p.seqlens_kv.data != nullptr) slots_kv = clamp(entry(p.seqlens_kv, batch_idx), 0, slots_kv);
  if (p.leftpad_kv.data != nullptr) s.slot_kv = clamp(entry(p.leftpad_kv, batch_idx), 0, slots_kv);
  s.row_kv += s.slot_kv;
  s.len_kv = slots_kv - s.slot_kv;
  if (p.prefix.data != nullptr) s.band.prefix = clamp(entry(p.prefix, batch_idx), 0, 0x7FFFFFFF);
}

// The batch of the k and v tensors that holds a sequence's keys. It is no member of Sequence, which would hold a
// register for it.
__device__ __forceinline__ int32_t batch_of_keys(const portable::SequencesParams& p, int32_t batch_idx) {
  if (!p.has_tables || batch_idx == p.batch) return batch_idx;
  if (p.cache_batch_idx.data != nullptr) return clamp(entry(p.cache_batch_idx, batch_idx), 0, p.slots - 1);
  return p.cu_seqlens_kv.data != nullptr ? 0 : batch_idx;
}

// Where a sequence's rows lie and how many it has; of its band the prefix alone, so that row_keys() says nothing of it.
// batch_idx == batch stands for the rows of packed tensors after the last sequence: no queries, only rows to zero.
template <class Int = int64_t>
__device__ __forceinline__ BandedSequence<Int> rows_of_sequence(const portable::SequencesParams& p, int32_t batch_idx) {
  BandedSequence<Int> s;
  s.row_q = s.row_kv = s.slot_kv = 0;
  s.slots_q = s.len_q = p.seqlen_q;
  s.len_kv = p.seqlen_kv;
  s.band = {};
  if (p.has_tables) read_tables(p, batch_idx, s);
  return s;
}

// The same with its band.
template <class Int = int64_t>
__device__ __forceinline__ BandedSequence<Int> sequence(const portable::SequencesParams& p,
                                                        const portable::MasksParams& masks, int32_t batch_idx) {
  BandedSequence<Int> s = rows_of_sequence<Int>(p, batch_idx);
  if (batch_idx == p.batch) return s;
  s.band.seqlen_q = s.len_q;
  s.band.seqlen_kv = s.len_kv;
  s.band.window_left = static_cast<Int>(masks.window_left);
  s.band.window_right = static_cast<Int>(masks.window_right);
  s.band.chunk = static_cast<Int>(masks.chunk);
  s.band.keep_first = masks.keep_first;
  s.band.causal_top_left = masks.causal_top_left != 0;
  return s;
}

}  // namespace tessella::device
