// The sequences of a call, as a GPU kernel's parameters: how long they are, and where their rows lie in the tensors.
#pragma once

#include "portable/divisor.hpp"
#include "portable/operand_params.hpp"

namespace tessella::portable {

struct SequencesParams {
  int32_t batch;
  Divisor heads_q;
  Divisor group;                // heads of q for each head of k and v
  int32_t seqlen_q, seqlen_kv;  // rows of a sequence; packed: the longest
  int32_t total_q, total_kv;    // packed: rows of the tensors; else those of a sequence
  int32_t has_tables;           // any of the next, cache_batch_idx included
  TableParams seqlens_q, seqlens_kv, leftpad_kv, cu_seqlens_q, cu_seqlens_kv, prefix;  // i32
  // For k and v in a cache of slots, whose batch strides step over slots: (batch) i32.
  TableParams cache_batch_idx;
  int32_t slots;
  // For paged k and v, whose batch strides step over pages: (batch, page) i32.
  TableParams page_table;
  Divisor page_size;
  int32_t num_pages;
};

}  // namespace tessella::portable
