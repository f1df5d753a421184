// One sequence of a batch in its own coordinates: query i and key j count from the sequence's first real row and key.
#pragma once

#include <algorithm>

#include "operations/attention/arguments.hpp"
#include "portable/band.hpp"

namespace tessella::core {

struct Sequence {
  int64_t batch_idx = 0;
  int64_t len_q = 0;    // queries
  int64_t len_kv = 0;   // real keys: neither left padding nor past the length
  int64_t row_q = 0;    // row of the q and out tensors that holds query 0
  int64_t slots_q = 0;  // rows from row_q that belong to this sequence; those past len_q have output 0, lse -inf
  int64_t row_kv = 0;   // row of the k and v tensors, or of the sequence's pages, that holds key 0
  int64_t slot_kv = 0;  // index of key 0 on the key axis of bias, dense mask, block map
  portable::Band band;
};

inline Sequence sequence(const AttentionArguments& p, int64_t batch_idx) {
  Sequence s;
  s.batch_idx = batch_idx;
  s.slots_q = p.seqlen_q;
  if (p.cu_seqlens_q) {
    s.row_q = p.cu_seqlens_q.at(0, batch_idx);
    s.slots_q = p.cu_seqlens_q.at(0, batch_idx + 1) - s.row_q;
  }
  s.len_q = p.seqlens_q ? p.seqlens_q.at(batch_idx) : s.slots_q;

  int64_t row_kv = 0;
  int64_t slots_kv = p.seqlen_kv;
  if (p.cu_seqlens_kv) {
    row_kv = p.cu_seqlens_kv.at(0, batch_idx);
    slots_kv = p.cu_seqlens_kv.at(0, batch_idx + 1) - row_kv;
  }
  s.slot_kv = p.leftpad_kv ? p.leftpad_kv.at(batch_idx) : 0;
  s.row_kv = row_kv + s.slot_kv;
  s.len_kv = (p.seqlens_kv ? p.seqlens_kv.at(batch_idx) : slots_kv) - s.slot_kv;

  s.band = {.seqlen_q = s.len_q,
            .seqlen_kv = s.len_kv,
            .window_left = p.window_left,
            .window_right = p.window_right,
            .prefix = p.prefix ? p.prefix.at(batch_idx) : -1,
            .chunk = p.chunk,
            .keep_first = p.keep_first,
            .causal_top_left = p.features.has(Feature::causal_top_left)};
  return s;
}

// The first draft key. The last len_q keys are drafts, and the draft mask says which of them a query sees. It does not
// hide earlier keys.
inline int64_t first_draft(const Sequence& s) { return s.len_kv - s.len_q; }
inline bool draft_visible(const AttentionArguments& p, const Sequence& s, int64_t i, int64_t j) {
  const int64_t draft = j - first_draft(s);
  return draft < 0 || p.draft_mask.data[p.draft_mask.index(s.batch_idx, 0, i, draft)] != std::byte{0};
}

inline bool element_visible(const AttentionArguments& p, const Sequence& s, int64_t head, int64_t i, int64_t j) {
  const int64_t slot = s.slot_kv + j;
  if (p.features.has(Feature::document) &&
      p.document_q.at(s.batch_idx, s.row_q + i) != p.document_kv.at(s.batch_idx, s.row_kv + j)) {
    return false;
  }
  if (p.features.has(Feature::dense_mask) &&
      p.dense_mask.data[p.dense_mask.index(s.batch_idx, head, i, slot)] == std::byte{0}) {
    return false;
  }
  if (p.features.has(Feature::draft_mask) && !draft_visible(p, s, i, j)) return false;
  return !p.features.has(Feature::block_map) ||
         p.block_map.data[p.block_map.index(s.batch_idx, head, i / p.block_q, slot / p.block_kv)] != std::byte{0};
}

inline bool visible(const AttentionArguments& p, const Sequence& s, int64_t head, int64_t i, int64_t j) {
  return s.band.visible(i, j) && (p.features.has_any(kElementMasks) ? element_visible(p, s, head, i, j) : true);
}

// Whether the band shows key j to some query of the sequence.
bool band_sees(const Sequence& s, int64_t j);

// Whether it shows some key in [begin, end).
bool band_sees_any(const Sequence& s, int64_t begin, int64_t end);

// Whether some query of the sequence sees key j, by any of the heads that read this KV head. With element masks it may
// have to try them all.
bool seen_by_any_query(const AttentionArguments& p, const Sequence& s, int64_t kv_head, int64_t j);

}  // namespace tessella::core
