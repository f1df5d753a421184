// The element masks of a call: masks that are no interval of keys as the band is (portable/band.hpp). The reference,
// the kernels of CPUs and GPUs and the maps of tiles read them by one contract. A mask that is added here works in all
// of them; where it is read most it may have a way of its own (cuda/device/score/mask.cuh,
// cpu/vector/element_masks-inl.hpp).
//
// Each has
//   row(s, b, h, i)     a number: queries of equal numbers see the same keys of the sequence
//   sees(s, b, row, j)  true if a query of this number sees key j
//   by_batch(), by_head(), by_query()   false if it shows the same for all of them
//   exists()            false if the call has no such mask
//   kHasHeads           false if it is the same for all heads in every call
// s: core::Sequence or device::Sequence; b: of the batch; h: of q's heads; i and j count from the first query and key
// of the sequence and lie inside its lengths.
#pragma once

#include "portable/divisor.hpp"
#include "portable/integers.hpp"

namespace tessella::portable {

// bool, (batch, head, query, key); stride 0 on broadcast axes. Strides count elements. Null data: absent.
struct MaskTensor {
  const uint8_t* data;
  int64_t batch_stride, head_stride, q_stride, kv_stride;

  static constexpr bool kHasHeads = true;
  constexpr bool exists() const { return data != nullptr; }
  constexpr bool by_batch() const { return batch_stride != 0; }
  constexpr bool by_head() const { return head_stride != 0; }
  constexpr bool by_query() const { return q_stride != 0; }
  constexpr int64_t index(int64_t b, int64_t h, int64_t q) const {
    return b * batch_stride + h * head_stride + q * q_stride;
  }
  constexpr bool at(int64_t row, int64_t kv) const { return data[row + kv * kv_stride] != 0; }
};

struct DenseMask : MaskTensor {  // its key axis counts slots of the sequence, padding included
  template <class S, class Int>
  constexpr int64_t row(const S&, int64_t b, int64_t h, Int i) const {
    return index(b, h, i);
  }
  template <class S, class Int>
  constexpr bool sees(const S& s, int64_t, int64_t row, Int j) const {
    return at(row, s.slot_kv + j);
  }
};

struct BlockMap : MaskTensor {  // the same for tiles of block_q queries and block_kv slots
  Divisor block_q, block_kv;

  template <class S, class Int>
  constexpr int64_t row(const S&, int64_t b, int64_t h, Int i) const {
    return index(b, h, block_q.quotient(static_cast<int32_t>(i)));
  }
  template <class S, class Int>
  constexpr bool sees(const S& s, int64_t, int64_t row, Int j) const {
    return at(row, block_kv.quotient(static_cast<int32_t>(s.slot_kv + j)));
  }
};

// The last len_q keys are drafts, those of the queries. The mask says which drafts a query sees and hides no other key.
struct DraftMask : MaskTensor {
  static constexpr bool kHasHeads = false;
  constexpr bool by_query() const { return true; }
  template <class S, class Int>
  constexpr int64_t row(const S&, int64_t b, int64_t, Int i) const {
    return index(b, 0, i);
  }
  template <class S, class Int>
  constexpr bool sees(const S& s, int64_t, int64_t row, Int j) const {
    const auto draft = j - (s.len_kv - s.len_q);
    return draft < 0 || at(row, draft);
  }
};

// i32 of rows of q, and of k, of the tensors where they are packed.
struct Documents {
  struct Ids {
    const int32_t* data;
    int64_t batch_stride, stride;
    constexpr int32_t at(int64_t b, int64_t row) const { return data[b * batch_stride + row * stride]; }
  };
  Ids q, kv;

  static constexpr bool kHasHeads = false;
  constexpr bool exists() const { return q.data != nullptr; }
  constexpr bool by_batch() const { return q.batch_stride != 0 || kv.batch_stride != 0; }
  constexpr bool by_head() const { return false; }
  constexpr bool by_query() const { return true; }
  template <class S, class Int>
  constexpr int64_t row(const S& s, int64_t b, int64_t, Int i) const {
    return q.at(b, s.row_q + i);
  }
  template <class S, class Int>
  constexpr bool sees(const S& s, int64_t b, int64_t row, Int j) const {
    return kv.at(b, s.row_kv + j) == row;
  }
};

// i32 (batch, head, row, range, start and end); stride 0 on broadcast axes, the last two are dense. Null data: absent.
// A range holds [start, end).
struct Ranges {
  const int32_t* data;
  int64_t batch_stride, head_stride, row_stride;
  int32_t count;  // of a row

  static constexpr bool kHasHeads = true;
  constexpr bool exists() const { return data != nullptr; }
  constexpr bool by_batch() const { return batch_stride != 0; }
  constexpr bool by_head() const { return head_stride != 0; }
  constexpr bool by_query() const { return true; }
  constexpr int64_t index(int64_t b, int64_t h, int64_t row) const {
    return b * batch_stride + h * head_stride + row * row_stride;
  }
  constexpr bool hold(int64_t row, int64_t idx) const {
    bool held = false;
#ifdef __CUDACC_RTC__
#pragma unroll 1  // each round unrolled would hold registers that kernels lack
#endif
    for (int32_t n = 0; n < count; ++n) held = held || (data[row + 2 * n] <= idx && idx < data[row + 2 * n + 1]);
    return held;
  }
};

// A row for each row of q: slots of its sequence, padding included.
struct KeyRanges : Ranges {
  template <class S, class Int>
  constexpr int64_t row(const S& s, int64_t b, int64_t h, Int i) const {
    return index(b, h, s.row_q + i);
  }
  template <class S, class Int>
  constexpr bool sees(const S& s, int64_t, int64_t row, Int j) const {
    return hold(row, s.slot_kv + j);
  }
};

// A row for each row of k: queries of its sequence.
struct QueryRanges : Ranges {
  // The query, and above it the head, if heads differ.
  template <class S, class Int>
  constexpr int64_t row(const S&, int64_t, int64_t h, Int i) const {
    return (by_head() ? h << 32 : 0) | i;
  }
  static constexpr int32_t query_of(int64_t row) { return static_cast<int32_t>(row); }
  template <class S, class Int>
  constexpr int64_t ranges_of(const S& s, int64_t b, int64_t row, Int j) const {
    return index(b, row >> 32, s.row_kv + j);
  }
  template <class S, class Int>
  constexpr bool sees(const S& s, int64_t b, int64_t row, Int j) const {
    return hold(ranges_of(s, b, row, j), query_of(row));
  }
};

struct ElementMasks {
  Documents documents;
  DenseMask dense_mask;
  BlockMap block_map;
  DraftMask draft_mask;
  KeyRanges key_ranges;
  QueryRanges query_ranges;
};

// Which of them a kernel is compiled for.
struct ElementMaskSet {
  bool documents = false;
  bool dense_mask = false;
  bool block_map = false;
  bool draft_mask = false;
  bool key_ranges = false;
  bool query_ranges = false;
  bool operator==(const ElementMaskSet&) const = default;
};
inline constexpr int32_t kMostElementMasks = 6;

// Calls f(bool& member, mask) for each, in the order in which a key is held against them.
template <class Set, class Masks, class F>
constexpr void for_each_mask(Set& set, Masks& masks, F&& f) {
  f(set.documents, masks.documents);
  f(set.dense_mask, masks.dense_mask);
  f(set.block_map, masks.block_map);
  f(set.draft_mask, masks.draft_mask);
  f(set.key_ranges, masks.key_ranges);
  f(set.query_ranges, masks.query_ranges);
}

constexpr int32_t count(const ElementMaskSet& set) {
  const ElementMasks none{};
  int32_t count = 0;
  for_each_mask(set, none, [&](bool has, const auto&) { count += has ? 1 : 0; });
  return count;
}

constexpr bool may_differ_by_head(const ElementMaskSet& set) {
  const ElementMasks none{};
  bool may = false;
  for_each_mask(set, none, [&](bool has, const auto& mask) { may = may || (has && mask.kHasHeads); });
  return may;
}

// True if the masks of the set show key j to query i.
template <ElementMaskSet Set, class S, class Int>
constexpr bool shown_by(const ElementMasks& masks, const S& s, int64_t b, int64_t h, Int i, Int j) {
  bool is_shown = true;
  for_each_mask(Set, masks, [&](bool has, const auto& mask) {
    if (has) is_shown = is_shown && mask.sees(s, b, mask.row(s, b, h, i), j);
  });
  return is_shown;
}

// Calls f(mask, index below kMostElementMasks) for those of the call.
template <class F>
constexpr void for_each_given(const ElementMasks& masks, F&& f) {
  const ElementMaskSet any{};
  int32_t index = 0;
  for_each_mask(any, masks, [&](bool, const auto& mask) {
    if (mask.exists()) f(mask, index);
    ++index;
  });
}

constexpr bool has_any(const ElementMasks& masks) {
  bool has = false;
  for_each_given(masks, [&](const auto&, int32_t) { has = true; });
  return has;
}

// True if all of the call's masks show key j to query i.
template <class S, class Int>
constexpr bool shown_by_all(const ElementMasks& masks, const S& s, int64_t b, int64_t h, Int i, Int j) {
  bool is_shown = true;
  for_each_given(masks,
                 [&](const auto& mask, int32_t) { is_shown = is_shown && mask.sees(s, b, mask.row(s, b, h, i), j); });
  return is_shown;
}

}  // namespace tessella::portable
