// One piece at work, and where the rows and scales of its keys lie. Nothing here depends on the type of K and V.
#pragma once

#include <algorithm>
#include <cstring>

#include "cpu/vector/decode_tiles-inl.hpp"
#include "cpu/vector/decode_vector.hpp"
#include "cpu/vector/element_masks-inl.hpp"
#include "cpu/vector/pairs-inl.hpp"
#include "hwy/highway.h"
#include "operations/attention/arguments.hpp"
#include "operations/attention/sequence.hpp"

HWY_BEFORE_NAMESPACE();
namespace tessella::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename Real>
struct Products;  // decode_products-inl.hpp

// One piece at work.
template <typename Real>
struct Piece {
  const DecodeCall<Real>& call;
  const core::AttentionArguments& p;
  const core::Sequence& s;
  const DecodePiece& piece;
  const DecodeScratch<Real>& scratch;
  const Products<Real>& products;
  SeenKeys seen;
  int64_t num_rows = 0;     // of each head
  int num_query_tiles = 0;  // likewise
  int ahead = 0;            // rows that are fetched before they are wanted
};

// Keys of a run that some row sees by its band, counted from the run's first: all lie in [first, end).
struct Run {
  int64_t begin = 0;
  int first = 0;
  int end = 0;
  const uint64_t* words = nullptr;  // [row][kRunWords] of all heads: what element masks show; null: all
  bool has_whole_keys = false;      // the scales are not in kUnit, and elements are read whole
  bool has_whole_values = false;
  int scores_begin() const { return first / kScores * kScores; }
  int scores_end() const { return (end + kScores - 1) / kScores * kScores; }
};

inline Run run_of(const SeenKeys& seen, int64_t key, const uint64_t* words) {
  const int64_t begin = key / kRunKeys * kRunKeys;
  const int64_t stop = begin + kRunKeys;
  const bool sees_band = std::max(seen.begin, seen.keep_end) < std::min(stop, seen.end);
  const int64_t end = sees_band ? std::min(stop, seen.end) : std::min(stop, seen.keep_end);
  return {begin, static_cast<int>(key - begin), static_cast<int>(end - begin), words};
}

// Finds what the element masks show of the run of `key`, to rows of all heads. False if they hide it from all.
template <typename Real>
bool find_words(const Piece<Real>& of, int64_t key, uint64_t* words) {
  const Run run = run_of(of.seen, key, words);
  const int end = run.end;
  uint64_t any = 0;
  for (int64_t n = 0; n < of.piece.num_heads * of.num_query_tiles; ++n) {
    const QueryTile& query_tile = of.scratch.query_tiles[n].query_tile;
    RowMasks last;
    for (int row = 0; row < query_tile.num_rows; ++row, words += kRunWords) {
      const RowMasks masks = masks_of_row(query_tile, row);
      if (row > 0 && masks == last) {
        std::copy_n(words - kRunWords, kRunWords, words);
        continue;
      }
      last = masks;
      std::fill_n(words, kRunWords, 0);
      words_of_row(of.s.masks, of.s, masks, run.begin, end, words);
      for (int word = 0; word < kRunWords; ++word) any |= words[word] & ~low_bits(run.first - 64 * word);
    }
  }
  return any != 0;
}

// Keys that the element masks show to some row of the head-th head.
template <typename Real>
bool any_of_rows(const Piece<Real>& of, const Run& run, int64_t head, uint64_t (&any)[kRunWords]) {
  std::fill_n(any, kRunWords, run.words == nullptr ? ~uint64_t{0} : 0);
  const int64_t first = head * of.num_rows;
  for (int64_t row = first; run.words != nullptr && row < first + of.num_rows; ++row) {
    for (int word = 0; word < kRunWords; ++word) any[word] |= run.words[row * kRunWords + word];
  }
  return std::any_of(any, any + kRunWords, [](uint64_t word) { return word != 0; });
}

// Finds the addresses of rows [key_begin, key_end) of one head of K or V.
inline void find_rows(const core::AttentionArguments& p, const core::Operand& t, const core::Sequence& s,
                      int64_t kv_head, int64_t key_begin, int64_t key_end, const void** rows) {
  const int64_t row_bytes = core::bytes_of(t.dtype, t.row_stride);
  for (int64_t key = key_begin; key < key_end;) {
    const int64_t row = s.row_kv + key;
    const int64_t stop = p.page_table ? std::min(key_end, key + p.page_size - row % p.page_size) : key_end;
    const std::byte* at = p.row_of(t, s.batch_idx, row, kv_head);
    for (; key < stop; ++key, at += row_bytes) *rows++ = at;
  }
}

// Finds the addresses of a run's rows, of the head-th head. Keys that no row sees get the address of zeros; their
// memory is never read.
template <typename Real>
void find_run(const Piece<Real>& of, const core::Operand& t, const Run& run, int64_t head, const void** rows) {
  const SeenKeys& seen = of.seen;
  std::fill(rows + run.scores_begin(), rows + run.scores_end() + kMostAhead, of.scratch.zeros);
  const auto find = [&](int64_t begin, int64_t end) {
    begin = std::max(begin, run.begin);
    end = std::min(end, run.begin + kRunKeys);
    if (begin < end) find_rows(of.p, t, of.s, of.piece.kv_head + head, begin, end, rows + (begin - run.begin));
  };
  find(0, seen.keep_end);
  find(std::max(seen.begin, seen.keep_end), seen.end);
  if (run.words == nullptr) return;
  uint64_t any[kRunWords];
  any_of_rows(of, run, head, any);
  for (int key = run.first; key < run.end; ++key) {
    if ((any[key / 64] >> (key % 64) & 1) == 0) rows[key] = of.scratch.zeros;
  }
}

// Loads the scales of keys [first, end) of a run; zeros for keys that no row sees.
template <typename Real>
void find_scales(const Piece<Real>& of, const core::Operand& t, const Run& run, int64_t kv_head, Real* scales) {
  const core::AttentionArguments& p = of.p;
  const auto load = [](const std::byte* from) {
    float scale;
    std::memcpy(&scale, from, sizeof scale);
    return static_cast<Real>(scale);
  };
  const auto find = [&](int64_t begin, int64_t end) {
    end = std::min(end, run.begin + kRunKeys);
    for (int64_t key = std::max(begin, run.begin); key < end;) {
      const int64_t row = of.s.row_kv + key;
      const int64_t stop = p.page_table ? std::min(end, key + p.page_size - row % p.page_size) : end;
      const std::byte* at = p.scale_of(t, of.s.batch_idx, row, kv_head);
      if (p.scale_block == 0) {
        std::fill(scales + (key - run.begin), scales + (stop - run.begin), load(at));
      } else if (p.scale_block == 1) {
        const int64_t bytes = core::bytes_of(t.dtype, t.row_stride);
        for (int64_t i = key; i < stop; ++i, at += bytes) scales[i - run.begin] = load(at);
      } else {
        for (int64_t i = key; i < stop; ++i) {
          scales[i - run.begin] = load(p.scale_of(t, of.s.batch_idx, of.s.row_kv + i, kv_head));
        }
      }
      key = stop;
    }
  };
  std::fill_n(scales, kRunKeys, t.data == nullptr ? Real{1} : Real{0});
  if (t.data == nullptr) return;
  find(0, of.seen.keep_end);
  find(std::max(of.seen.begin, of.seen.keep_end), of.seen.end);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessella::cpu
HWY_AFTER_NAMESPACE();
