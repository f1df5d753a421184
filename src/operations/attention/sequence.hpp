// One sequence of a batch in its own coordinates: query i and key j count from the sequence's first real row and key.
#pragma once

#include <algorithm>

#include "operations/attention/arguments.hpp"
#include "operations/attention/element_masks.hpp"
#include "portable/band.hpp"
#include "portable/element_masks.hpp"

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
  portable::ElementMasks masks{};
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
  if (p.features.has_any(kElementMasks)) s.masks = element_masks(p);
  return s;
}

inline bool element_visible(const Sequence& s, int64_t head, int64_t i, int64_t j) {
  return portable::shown_by_all(s.masks, s, s.batch_idx, head, i, j);
}

inline bool visible(const Sequence& s, int64_t head, int64_t i, int64_t j) {
  return s.band.visible(i, j) && element_visible(s, head, i, j);
}

// Whether the band shows key j to some query of the sequence.
bool band_sees(const Sequence& s, int64_t j);

// Whether it shows some key in [begin, end).
bool band_sees_any(const Sequence& s, int64_t begin, int64_t end);

// Whether some query of the sequence sees key j, by any of the heads that read this KV head. With element masks it may
// have to try them all.
bool seen_by_any_query(const AttentionArguments& p, const Sequence& s, int64_t kv_head, int64_t j);

}  // namespace tessella::core
