// Builders of key ranges and query ranges: the intervals of masks that Mask::key_ranges and Mask::query_ranges take.
//
//   const ts::ranges::Ranges tree = ts::ranges::prefix_tree({100, 40, 30}, {-1, 0, 0});  // a prompt and two answers
//   ts::forward({.q = q, .k = k, .v = v, .out = out}, {.mask = ts::Mask::query_ranges(tree.view())});
//
// They are those of Python's tessella.ranges, and docs/ranges.md shows each mask. All but flash_mask make the ranges of
// one sequence, which stand for every sequence and head of a call. Query i stands at key p = i + seqlen_kv - seqlen_q.
// What does not fit throws Error(invalid_argument).
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <numeric>
#include <ranges>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <tessella/tensor.hpp>

namespace tessella::ranges {

// Intervals and their memory, on the host.
struct Ranges {
  std::vector<int32_t> numbers;  // start and end of each interval, row by row
  std::array<int64_t, 5> shape;  // (batch or 1, heads or 1, queries or keys, intervals, 2)

  TensorView view() const& {
    return tessella::view(numbers.data(), i32, {shape[0], shape[1], shape[2], shape[3], shape[4]});
  }
  TensorView view() const&& = delete;  // the memory would be gone before its use

  // An interval that ends before its start becomes empty.
  void add(int64_t start, int64_t end) {
    numbers.push_back(static_cast<int32_t>(start));
    numbers.push_back(static_cast<int32_t>(std::max(start, end)));
  }
};

// [start, end)
struct Interval {
  int64_t start, end;
};

// Integers, given as a braced list, or as a vector, span or array of int32_t or int64_t.
struct Integers : std::vector<int64_t> {
  Integers(std::initializer_list<int64_t> list) : std::vector<int64_t>(list) {}
  template <std::ranges::contiguous_range List>
  requires std::signed_integral<std::ranges::range_value_t<List>> Integers(const List& list)
      : std::vector<int64_t>(std::ranges::begin(list), std::ranges::end(list)) {}
};

namespace detail {

inline constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
inline constexpr size_t kMostIntervals = 8;  // of a query or key, as the library takes them

template <typename... Words>
[[noreturn]] void refuse(const Words&... words) {
  std::ostringstream message;
  (message << ... << words);
  throw Error(ErrorCode::invalid_argument, message.str().c_str());
}

inline void require_size(const char* name, int64_t size, int64_t least = 0) {
  if (size < least || size > kMost) refuse(name, " is ", size, ", expected ", least, " to ", kMost);
}

inline void require_entries(const char* name, const Integers& list, int64_t least, int64_t most) {
  const auto wrong = std::ranges::find_if(list, [&](int64_t entry) { return entry < least || entry > most; });
  if (wrong != list.end()) refuse(name, " has the entry ", *wrong, ", expected ", least, " to ", most);
}

// "(2, 3)"
inline std::string shape_string(std::span<const int64_t> shape) {
  std::string string;
  for (const int64_t extent : shape) string += (string.empty() ? "(" : ", ") + std::to_string(extent);
  return string + ")";
}

inline void require_count(const char* name, size_t count, std::span<const int64_t> shape) {
  double expected = 1;  // which does not overflow
  for (const int64_t extent : shape) expected *= static_cast<double>(extent);
  if (static_cast<double>(count) == expected) return;
  refuse(name, " has ", count, " entries, expected those of shape ", shape_string(shape));
}

inline void require_rising(const char* name, const Integers& ids) {
  const auto fallen = std::ranges::is_sorted_until(ids);
  if (fallen == ids.end()) return;
  refuse(name, "[", fallen - ids.begin(), "] is ", *fallen, ", expected at least ", *std::prev(fallen),
         ", the id before");
}

// To be filled by add().
inline Ranges make_ranges(int64_t batch, int64_t heads, int64_t num_rows, size_t num_intervals) {
  Ranges made{.numbers = {}, .shape = {batch, heads, num_rows, static_cast<int64_t>(num_intervals), 2}};
  made.numbers.reserve(static_cast<size_t>(batch * heads * num_rows) * num_intervals * 2);
  return made;
}

}  // namespace detail

// Query ranges of a tree of segments: a token sees those before it on its path from the root, and itself. Each path
// from a root to a leaf gets what it would get as a sequence of its own under a causal mask, and needs no other mask.
// Rotary positions count along the path. ALiBi and windows count along the array and do not fit.
//   lengths   tokens of each segment, in depth-first order: a segment, then each child with all that continues it
//   parents   the index of the segment that each continues, -1 for a root; several roots do not see each other
//   returns   one interval a token
inline Ranges prefix_tree(const Integers& lengths, const Integers& parents) {
  if (lengths.empty()) detail::refuse("prefix_tree: lengths is empty, expected at least one segment");
  if (parents.size() != lengths.size()) {
    detail::refuse("prefix_tree: parents has ", parents.size(), " entries, expected ", lengths.size(), " as lengths");
  }
  detail::require_entries("prefix_tree: lengths", lengths, 0, detail::kMost);
  const int64_t total = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  detail::require_size("prefix_tree: the sum of lengths", total);

  std::vector<int64_t> ends(lengths.size(), total);  // of the tokens of each segment's subtree
  std::vector<size_t> path;                          // from the root to the segment before
  int64_t start = 0;
  for (size_t segment = 0; segment < lengths.size(); start += lengths[segment++]) {
    while (!path.empty() && static_cast<int64_t>(path.back()) != parents[segment]) {
      ends[path.back()] = start;
      path.pop_back();
    }
    if (parents[segment] != -1 && path.empty()) {
      const std::string last = std::to_string(segment - 1);
      const std::string others = ", " + last + " or a segment that " + last + " continues (depth-first order)";
      detail::refuse("prefix_tree: parents[", segment, "] is ", parents[segment], ", expected -1",
                     segment == 0 ? "" : others);
    }
    path.push_back(segment);
  }

  Ranges made = detail::make_ranges(1, 1, total, 1);
  int64_t token = 0;
  for (size_t segment = 0; segment < lengths.size(); ++segment) {
    for (int64_t n = 0; n < lengths[segment]; ++n) made.add(token++, ends[segment]);
  }
  return made;
}

// Key ranges of a causal sequence in which the tokens of a span see each other, as those of an image in text: query i
// sees the keys [0, max(i + 1, end of its span)), one interval. No causal mask stands beside them. Queries and keys are
// the same tokens. Spans are sorted and disjoint, inside [0, seqlen], and may be empty.
inline Ranges bidirectional_spans(int64_t seqlen, const std::vector<Interval>& spans) {
  detail::require_size("bidirectional_spans: seqlen", seqlen);
  Ranges made = detail::make_ranges(1, 1, seqlen, 1);
  int64_t query = 0;  // the next, where the span before it ends
  for (size_t idx = 0; idx < spans.size(); ++idx) {
    const auto [start, end] = spans[idx];
    if (start < query || end < start || end > seqlen) {
      detail::refuse("bidirectional_spans: spans[", idx, "] is [", start, ", ", end, "), expected ", query,
                     " <= start <= end <= ", seqlen, ": sorted, disjoint and inside the sequence");
    }
    for (; query < start; ++query) made.add(0, query + 1);
    for (; query < end; ++query) made.add(0, end);
  }
  for (; query < seqlen; ++query) made.add(0, query + 1);
  return made;
}

// Key ranges that are causal by blocks: the query at p sees key j iff j's block is p's or one before it, one interval
// inside [0, seqlen_kv]. The queries are the last tokens, and the first block starts at key 0.
inline Ranges block_diffusion(int64_t seqlen_q, int64_t seqlen_kv, int64_t block) {
  detail::require_size("block_diffusion: seqlen_q", seqlen_q);
  detail::require_size("block_diffusion: seqlen_kv", seqlen_kv);
  detail::require_size("block_diffusion: block", block, 1);
  Ranges made = detail::make_ranges(1, 1, seqlen_q, 1);
  for (int64_t p = seqlen_kv - seqlen_q; p < seqlen_kv; ++p) {
    made.add(0, p < 0 ? 0 : std::min((p / block + 1) * block, seqlen_kv));
  }
  return made;
}

// Query ranges of a FlashMask, as paddle.nn.functional.flashmask_attention takes it. Its numbers say, for each key,
// which rows, that is queries, are hidden (LT and UT: the lower and the upper triangle, S and E: start and end):
//   causal, 1 number        [LTS, seqlen_q)
//   causal, 2 numbers       [LTS, LTE)
//   not causal, 2 numbers   [LTS, seqlen_q) and [0, UTE)
//   not causal, 4 numbers   [LTS, LTE) and [UTS, UTE)
// With causal, the rows i < j are hidden too, whatever the lengths are, and no causal mask stands beside the ranges.
//   startend_row_indices   from 0 to seqlen_q; an interval that ends before its start hides nothing
//   shape                  (batch or 1, heads or 1, seqlen_kv, 1, 2 or 4); repeat heads of k for those of q
//   returns                one interval a key, with causal and 2 numbers two, with 4 numbers three
inline Ranges flash_mask(const Integers& startend_row_indices, const std::array<int64_t, 4>& shape, bool causal,
                         int64_t seqlen_q) {
  const char* name = "flash_mask: startend_row_indices";
  const auto [batch, heads, seqlen_kv, count] = shape;
  detail::require_size("flash_mask: seqlen_q", seqlen_q);
  for (const int64_t extent : shape) detail::require_size("flash_mask: an axis of shape", extent);
  if (causal ? count != 1 && count != 2 : count != 2 && count != 4) {
    detail::refuse(name, " has shape ", detail::shape_string(shape), ", expected ", causal ? "1 or 2" : "2 or 4",
                   " numbers a key where causal is ", causal ? "true" : "false");
  }
  detail::require_count(name, startend_row_indices.size(), shape);
  detail::require_entries(name, startend_row_indices, 0, seqlen_q);

  Ranges made = detail::make_ranges(batch, heads, seqlen_kv, count == 4 ? 3 : causal && count == 2 ? 2 : 1);
  const int64_t* numbers = startend_row_indices.data();
  for (int64_t key = 0; key < batch * heads * seqlen_kv; ++key, numbers += count) {
    const int64_t diagonal = std::min(key % seqlen_kv, seqlen_q);
    if (causal) {
      made.add(diagonal, numbers[0]);
      if (count == 2) made.add(std::max({diagonal, numbers[0], numbers[1]}), seqlen_q);
    } else if (count == 2) {
      made.add(numbers[1], numbers[0]);
    } else {
      Interval first{numbers[0], numbers[1]}, second{numbers[2], numbers[3]};
      if (second.start < first.start) std::swap(first, second);
      const int64_t first_end = std::max(first.start, first.end);
      made.add(0, first.start);
      made.add(first_end, second.start);
      made.add(std::max({first_end, second.start, second.end}), seqlen_q);
    }
  }
  return made;
}

// Key ranges of a window on both sides: the query at p sees the keys from p - left to p + right; -1 = no bound.
// One interval a query, inside [0, seqlen_kv]. Mask::window says the same without an array. The array is for windows
// that differ: change rows, or put the numbers of heads one behind the other and their count into shape.
inline Ranges window(int64_t seqlen_q, int64_t seqlen_kv, int64_t left, int64_t right) {
  detail::require_size("window: seqlen_q", seqlen_q);
  detail::require_size("window: seqlen_kv", seqlen_kv);
  detail::require_size("window: left", left, -1);
  detail::require_size("window: right", right, -1);
  Ranges made = detail::make_ranges(1, 1, seqlen_q, 1);
  for (int64_t p = seqlen_kv - seqlen_q; p < seqlen_kv; ++p) {
    made.add(left == -1 ? 0 : std::clamp<int64_t>(p - left, 0, seqlen_kv),
             right == -1 ? seqlen_kv : std::clamp<int64_t>(p + right + 1, 0, seqlen_kv));
  }
  return made;
}

// Key ranges of documents that stand one after the other: a query sees the keys of its own document, one interval,
// which is empty where the document has no key. The keys' ids never fall. Mask::document takes ids in any order.
inline Ranges documents(const Integers& ids_q, const Integers& ids_kv) {
  detail::require_rising("documents: ids_kv", ids_kv);
  Ranges made = detail::make_ranges(1, 1, std::ssize(ids_q), 1);
  for (const int64_t id : ids_q) {
    const auto [first, behind] = std::equal_range(ids_kv.begin(), ids_kv.end(), id);
    made.add(first - ids_kv.begin(), behind - ids_kv.begin());
  }
  return made;
}
// Queries and keys are the same tokens.
inline Ranges documents(const Integers& ids_q) {
  detail::require_rising("documents: ids_q", ids_q);
  return documents(ids_q, ids_q);
}

// Key ranges of a block map: each run of visible blocks in a row is an interval. Mask::block_map takes the map itself,
// with any number of runs.
//   visible             (ceil(seqlen_q / block_q), ceil(seqlen_kv / block_kv)), in row-major order; 0 = hidden
//   block_q, block_kv   rows of a block of queries and of keys; a last block may be less
//   returns             intervals inside [0, seqlen_kv], as many a query as the most runs of a row, at most 8
inline Ranges blocks(std::span<const uint8_t> visible, int64_t block_q, int64_t block_kv, int64_t seqlen_q,
                     int64_t seqlen_kv) {
  detail::require_size("blocks: block_q", block_q, 1);
  detail::require_size("blocks: block_kv", block_kv, 1);
  detail::require_size("blocks: seqlen_q", seqlen_q);
  detail::require_size("blocks: seqlen_kv", seqlen_kv);
  const int64_t shape[] = {(seqlen_q + block_q - 1) / block_q, (seqlen_kv + block_kv - 1) / block_kv};
  detail::require_count("blocks: visible", visible.size(), shape);

  std::vector<std::vector<Interval>> runs(static_cast<size_t>(shape[0]));  // of blocks, of each row
  size_t most = 1;
  for (int64_t at = 0; at < std::ssize(visible); ++at) {
    if (visible[static_cast<size_t>(at)] == 0) continue;
    std::vector<Interval>& row = runs[static_cast<size_t>(at / shape[1])];
    const int64_t block = at % shape[1];
    if (row.empty() || row.back().end < block) row.push_back({block, block});
    row.back().end = block + 1;
    most = std::max(most, row.size());
  }
  if (most > detail::kMostIntervals) {
    detail::refuse("blocks: visible has a row of ", most, " runs, expected at most ", detail::kMostIntervals,
                   "; Mask::block_map takes it");
  }
  Ranges made = detail::make_ranges(1, 1, seqlen_q, most);
  for (int64_t i = 0; i < seqlen_q; ++i) {
    const std::vector<Interval>& row = runs[static_cast<size_t>(i / block_q)];
    for (const auto& [start, end] : row) made.add(start * block_kv, std::min(end * block_kv, seqlen_kv));
    for (size_t n = row.size(); n < most; ++n) made.add(0, 0);
  }
  return made;
}

}  // namespace tessella::ranges
