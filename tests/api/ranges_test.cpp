// <tessella/ranges.hpp>: every builder against the predicate it stands for, written out element by element; attention
// through each against attention through the same mask as a matrix; errors.
#include "tessella/ranges.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "cases/random.hpp"
#include "tessella/attention.hpp"

namespace ts = tessella;
using ts::ranges::Interval;
using ts::ranges::Ranges;

namespace tessella::tests {
namespace {

using Matrix = std::vector<uint8_t>;  // (seqlen_q, seqlen_kv), 1 = visible
using Shows = std::function<bool(int64_t i, int64_t j)>;

constexpr std::pair<int64_t, int64_t> kLengths[] = {{0, 0}, {0, 5}, {1, 1}, {1, 7}, {7, 1}, {12, 12}, {9, 23}, {23, 9}};

Matrix matrix(int64_t seqlen_q, int64_t seqlen_kv, const Shows& shows) {
  Matrix made;
  for (int64_t i = 0; i < seqlen_q; ++i) {
    for (int64_t j = 0; j < seqlen_kv; ++j) made.push_back(shows(i, j) ? 1 : 0);
  }
  return made;
}

// Whether an interval of the row, of those of all heads, has the index.
bool covers(const Ranges& ranges, int64_t row, int64_t index) {
  const int32_t* interval = ranges.numbers.data() + row * ranges.shape[3] * 2;
  for (int64_t n = 0; n < ranges.shape[3]; ++n, interval += 2) {
    if (interval[0] <= index && index < interval[1]) return true;
  }
  return false;
}

// What one head of key ranges shows.
Matrix shown_keys(const Ranges& ranges, int64_t seqlen_kv) {
  return matrix(ranges.shape[2], seqlen_kv, [&](int64_t i, int64_t j) { return covers(ranges, i, j); });
}
Matrix shown_queries(const Ranges& ranges, int64_t seqlen_q, int64_t head = 0) {
  const int64_t seqlen_kv = ranges.shape[2];
  return matrix(seqlen_q, seqlen_kv, [&](int64_t i, int64_t j) { return covers(ranges, head * seqlen_kv + j, i); });
}

// That intervals are as the library takes them: those that are not empty sorted and disjoint, all inside [0, length].
void require_wellformed(const Ranges& ranges, int64_t length) {
  EXPECT_EQ(std::ssize(ranges.numbers),
            ranges.shape[0] * ranges.shape[1] * ranges.shape[2] * ranges.shape[3] * ranges.shape[4]);
  EXPECT_GE(ranges.shape[3], 1);
  EXPECT_LE(ranges.shape[3], 8);
  EXPECT_EQ(ranges.shape[4], 2);
  int64_t least = 0;
  for (int64_t n = 0; n < std::ssize(ranges.numbers) / 2; ++n) {
    if (n % ranges.shape[3] == 0) least = 0;
    const int64_t start = ranges.numbers[2 * n], end = ranges.numbers[2 * n + 1];
    EXPECT_TRUE(0 <= start && start <= end && end <= length) << n;
    if (start == end) continue;
    EXPECT_LE(least, start) << n;
    least = end;
  }
}

std::array<int64_t, 5> one_sequence(int64_t num_rows, int64_t num_intervals = 1) {
  return {1, 1, num_rows, num_intervals, 2};
}

struct Tree {
  std::vector<int64_t> lengths, parents;

  int64_t tokens() const { return std::accumulate(lengths.begin(), lengths.end(), int64_t{0}); }
  // The segment that has the token.
  int64_t segment_of(int64_t token) const {
    int64_t segment = 0;
    while (token >= lengths[segment]) token -= lengths[segment++];
    return segment;
  }
  bool shows(int64_t i, int64_t j) const {
    const int64_t wanted = segment_of(j);
    for (int64_t segment = segment_of(i); segment != -1; segment = parents[segment]) {
      if (segment == wanted) return j <= i;
    }
    return false;
  }
};

// Each segment continues the one before it, or one of those that it continues.
Tree random_tree(Random& random, int64_t num_segments) {
  Tree tree;
  std::vector<int64_t> path;
  for (int64_t segment = 0; segment < num_segments; ++segment) {
    path.resize(random.below(std::ssize(path) + 1));
    tree.parents.push_back(path.empty() ? -1 : path.back());
    tree.lengths.push_back(random.below(6));
    path.push_back(segment);
  }
  return tree;
}

TEST(Ranges, ATokenOfATreeSeesItsPath) {
  Random random(1);
  std::vector<Tree> trees = {{{5}, {-1}},
                             {{0}, {-1}},
                             {{3, 2, 4}, {-1, 0, 0}},
                             {{2, 2, 2}, {-1, -1, -1}},
                             {{1, 1, 1, 1, 1, 1, 1}, {-1, 0, 1, 1, 0, 4, -1}},
                             {{2, 0, 3, 0, 1}, {-1, 0, 1, 1, 0}}};
  for (const int64_t num_segments : {2, 5, 9, 9, 9, 20, 40}) trees.push_back(random_tree(random, num_segments));
  for (size_t n = 0; n < trees.size(); ++n) {
    const Tree& tree = trees[n];
    const Ranges made = ranges::prefix_tree(tree.lengths, tree.parents);
    EXPECT_EQ(made.shape, one_sequence(tree.tokens())) << n;
    require_wellformed(made, tree.tokens());
    EXPECT_EQ(shown_queries(made, tree.tokens()),
              matrix(tree.tokens(), tree.tokens(), [&](int64_t i, int64_t j) { return tree.shows(i, j); }))
        << n;
  }
}

TEST(Ranges, SpansAreSeenWhole) {
  Random random(2);
  std::vector<std::pair<int64_t, std::vector<Interval>>> cases = {{0, {}},
                                                                  {1, {}},
                                                                  {1, {{0, 1}}},
                                                                  {7, {{0, 7}}},
                                                                  {7, {{0, 3}, {5, 7}}},
                                                                  {7, {{0, 3}, {3, 3}, {3, 6}}},
                                                                  {7, {{0, 0}, {2, 2}, {2, 5}, {7, 7}}}};
  for (int n = 0; n < 8; ++n) {
    std::vector<int64_t> bounds(2 * random.below(5));
    for (int64_t& bound : bounds) bound = random.in(0, 23);
    std::sort(bounds.begin(), bounds.end());
    cases.push_back({23, {}});
    for (size_t at = 0; at < bounds.size(); at += 2) cases.back().second.push_back({bounds[at], bounds[at + 1]});
  }
  for (const auto& each : cases) {
    const int64_t seqlen = each.first;
    const std::vector<Interval>& spans = each.second;
    const auto is_in_one = [&](int64_t i, int64_t j) {
      return std::ranges::any_of(spans, [&](const Interval& span) {
        return span.start <= i && i < span.end && span.start <= j && j < span.end;
      });
    };
    const Ranges made = ranges::bidirectional_spans(seqlen, spans);
    EXPECT_EQ(made.shape, one_sequence(seqlen));
    require_wellformed(made, seqlen);
    EXPECT_EQ(shown_keys(made, seqlen),
              matrix(seqlen, seqlen, [&](int64_t i, int64_t j) { return j <= i || is_in_one(i, j); }));
  }
}

TEST(Ranges, BlocksOfDiffusionAreSeenUpToOnesOwn) {
  for (const auto& [seqlen_q, seqlen_kv] : kLengths) {
    for (const int64_t block : {1, 2, 4, 5, 64}) {
      const int64_t first = seqlen_kv - seqlen_q;
      const Ranges made = ranges::block_diffusion(seqlen_q, seqlen_kv, block);
      EXPECT_EQ(made.shape, one_sequence(seqlen_q));
      require_wellformed(made, seqlen_kv);
      EXPECT_EQ(shown_keys(made, seqlen_kv),
                matrix(seqlen_q, seqlen_kv,
                       [&](int64_t i, int64_t j) { return i + first >= 0 && j / block <= (i + first) / block; }))
          << seqlen_q << " " << seqlen_kv << " " << block;
    }
  }
}

TEST(Ranges, Windows) {
  constexpr int64_t kSides[] = {-1, 0, 3, 2147483647};
  for (const auto& [seqlen_q, seqlen_kv] : kLengths) {
    for (const int64_t left : kSides) {
      for (const int64_t right : kSides) {
        const int64_t first = seqlen_kv - seqlen_q;
        const Ranges made = ranges::window(seqlen_q, seqlen_kv, left, right);
        EXPECT_EQ(made.shape, one_sequence(seqlen_q));
        require_wellformed(made, seqlen_kv);
        EXPECT_EQ(shown_keys(made, seqlen_kv), matrix(seqlen_q, seqlen_kv,
                                                      [&](int64_t i, int64_t j) {
                                                        return (left == -1 || j >= i + first - left) &&
                                                               (right == -1 || j <= i + first + right);
                                                      }))
            << seqlen_q << " " << seqlen_kv << " " << left << " " << right;
      }
    }
  }
}

// What FlashMask's numbers hide of row i and column j.
bool hides(const int64_t* numbers, bool causal, int64_t count, int64_t i, int64_t j) {
  if (causal && i < j) return true;
  if (count == 1) return i >= numbers[0];
  if (count == 2 && !causal) return i >= numbers[0] || i < numbers[1];
  return (numbers[0] <= i && i < numbers[1]) || (count == 4 && numbers[2] <= i && i < numbers[3]);
}

void require_flash_mask(const std::vector<int64_t>& numbers, std::array<int64_t, 4> shape, bool causal,
                        int64_t seqlen_q) {
  const auto [batch, heads, seqlen_kv, count] = shape;
  const Ranges made = ranges::flash_mask(numbers, shape, causal, seqlen_q);
  const int64_t num_intervals = causal ? count : count == 2 ? 1 : 3;
  EXPECT_EQ(made.shape, (std::array<int64_t, 5>{batch, heads, seqlen_kv, num_intervals, 2}));
  require_wellformed(made, seqlen_q);
  for (int64_t head = 0; head < batch * heads; ++head) {
    const int64_t* of_head = numbers.data() + head * seqlen_kv * shape[3];
    EXPECT_EQ(shown_queries(made, seqlen_q, head),
              matrix(seqlen_q, seqlen_kv,
                     [&](int64_t i, int64_t j) { return !hides(of_head + j * shape[3], causal, shape[3], i, j); }))
        << causal << " " << count << " " << seqlen_q << " " << seqlen_kv;
  }
}

constexpr std::pair<bool, int64_t> kFlashMasks[] = {{true, 1}, {true, 2}, {false, 2}, {false, 4}};

TEST(Ranges, FlashMasks) {
  Random random(3);
  for (const auto& [causal, count] : kFlashMasks) {
    for (const auto& [seqlen_q, seqlen_kv] : kLengths) {
      for (const auto& [batch, heads] : {std::pair<int64_t, int64_t>{1, 1}, {2, 1}, {1, 3}, {2, 2}}) {
        std::vector<int64_t> numbers(batch * heads * seqlen_kv * count);
        for (int64_t& number : numbers) number = random.in(0, seqlen_q);
        require_flash_mask(numbers, {batch, heads, seqlen_kv, count}, causal, seqlen_q);
      }
    }
  }
}

TEST(Ranges, EveryFlashMaskOfAKey) {
  constexpr int64_t kSeqlenQ = 4;
  for (const auto& [causal, count] : kFlashMasks) {
    int64_t seqlen_kv = 1;  // a key for each choice of its numbers
    for (int64_t n = 0; n < count; ++n) seqlen_kv *= kSeqlenQ + 1;
    std::vector<int64_t> numbers;
    for (int64_t key = 0; key < seqlen_kv; ++key) {
      for (int64_t n = 0, rest = key; n < count; ++n, rest /= kSeqlenQ + 1) numbers.push_back(rest % (kSeqlenQ + 1));
    }
    require_flash_mask(numbers, {1, 1, seqlen_kv, count}, causal, kSeqlenQ);
  }
}

TEST(Ranges, Documents) {
  Random random(4);
  const auto random_ids = [&](int64_t seqlen) {
    std::vector<int32_t> ids(seqlen);
    for (int32_t& id : ids) id = static_cast<int32_t>(random.in(-3, 3));
    return ids;
  };
  for (const auto& [seqlen_q, seqlen_kv] : kLengths) {
    const std::vector<int32_t> ids_q = random_ids(seqlen_q);  // queries may be in any order
    std::vector<int32_t> ids_kv = random_ids(seqlen_kv);
    std::sort(ids_kv.begin(), ids_kv.end());
    const Ranges made = ranges::documents(ids_q, ids_kv);
    EXPECT_EQ(made.shape, one_sequence(seqlen_q));
    require_wellformed(made, seqlen_kv);
    EXPECT_EQ(shown_keys(made, seqlen_kv),
              matrix(seqlen_q, seqlen_kv, [&](int64_t i, int64_t j) { return ids_q[i] == ids_kv[j]; }));
    EXPECT_EQ(ranges::documents(ids_kv).numbers, ranges::documents(ids_kv, ids_kv).numbers);
  }
}

TEST(Ranges, Blocks) {
  Random random(5);
  constexpr int64_t kSizes[][4] = {{1, 1, 1, 1}, {9, 23, 4, 2}, {8, 30, 8, 3}, {0, 12, 4, 4}, {12, 0, 4, 4}};
  for (const auto& [seqlen_q, seqlen_kv, block_q, block_kv] : kSizes) {
    const int64_t columns = (seqlen_kv + block_kv - 1) / block_kv;
    for (const double visible : {0.0, 0.2, 0.5, 0.9, 1.0}) {
      std::vector<uint8_t> map((seqlen_q + block_q - 1) / block_q * columns);
      int64_t most = 1;
      for (size_t at = 0, runs = 0; at < map.size(); ++at) {
        const bool is_first = static_cast<int64_t>(at) % columns == 0;
        map[at] = random.chance(visible) ? 1 : 0;
        runs = (is_first ? 0 : runs) + (map[at] != 0 && (is_first || map[at - 1] == 0) ? 1 : 0);
        most = std::max(most, static_cast<int64_t>(runs));
      }
      const Ranges made = ranges::blocks(map, block_q, block_kv, seqlen_q, seqlen_kv);
      EXPECT_EQ(made.shape, one_sequence(seqlen_q, most));
      require_wellformed(made, seqlen_kv);
      const int64_t rows = block_q, keys = block_kv;
      EXPECT_EQ(shown_keys(made, seqlen_kv), matrix(seqlen_q, seqlen_kv, [&](int64_t i, int64_t j) {
                  return map[i / rows * columns + j / keys] != 0;
                }));
    }
  }
}

TEST(Ranges, ListsOfAnyIntegers) {
  const int32_t lengths[] = {3, 2, 4};
  const std::vector<int32_t> parents = {-1, 0, 0};
  const std::array<int64_t, 3> wide = {-1, 0, 0};
  const Ranges made = ranges::prefix_tree({3, 2, 4}, {-1, 0, 0});
  EXPECT_EQ(made.numbers, (std::vector<int32_t>{0, 9, 1, 9, 2, 9, 3, 5, 4, 5, 5, 9, 6, 9, 7, 9, 8, 9}));
  EXPECT_EQ(made.numbers, ranges::prefix_tree(lengths, parents).numbers);
  EXPECT_EQ(made.numbers, ranges::prefix_tree(std::span(lengths), wide).numbers);
}

// out and lse of a call, which sees (queries, keys) of one sequence of 4 heads.
struct Attention {
  static constexpr int64_t kHeadsQ = 4, kHeadsKv = 2, kDim = 16;
  std::vector<float> out, lse;

  Attention(int64_t seqlen_q, int64_t seqlen_kv, const char* kernel, const Mask& mask)
      : out(seqlen_q * kHeadsQ * kDim), lse(kHeadsQ * seqlen_q) {
    Random random(6);
    const auto random_rows = [&](int64_t seqlen, int64_t heads) {
      std::vector<float> rows(seqlen * heads * kDim);
      for (float& x : rows) x = static_cast<float>(random.normal());
      return rows;
    };
    const std::vector<float> q = random_rows(seqlen_q, kHeadsQ), k = random_rows(seqlen_kv, kHeadsKv),
                             v = random_rows(seqlen_kv, kHeadsKv);
    forward({.q = ts::view(q.data(), ts::f32, {1, seqlen_q, kHeadsQ, kDim}),
             .k = ts::view(k.data(), ts::f32, {1, seqlen_kv, kHeadsKv, kDim}),
             .v = ts::view(v.data(), ts::f32, {1, seqlen_kv, kHeadsKv, kDim}),
             .out = ts::view(out.data(), ts::f32, {1, seqlen_q, kHeadsQ, kDim}),
             .lse = ts::view(lse.data(), ts::f32, {1, kHeadsQ, seqlen_q})},
            {.mask = mask, .kernel = kernel});
  }
};

void expect_near(const std::vector<float>& got, const std::vector<float>& expected, const std::string& what) {
  for (size_t n = 0; n < got.size(); ++n) {
    if (got[n] == expected[n]) continue;  // -inf
    ASSERT_NEAR(got[n], expected[n], 1e-6f) << what << " " << n;
  }
}

TEST(Ranges, AttentionIsThatOfTheMatrix) {
  constexpr int64_t kQueries = 70, kKeys = 90;
  Random random(7);
  std::vector<int64_t> hidden(4 * kKeys * 2), ids(kKeys);
  for (int64_t& number : hidden) number = random.in(0, kQueries);
  for (int64_t j = 0; j < kKeys; ++j) ids[j] = j / 25;
  const std::vector<uint8_t> map = {1, 0, 1, 0, 1, 1, 0, 0, 0};
  const struct {
    const char* name;
    Ranges ranges;
    bool is_of_queries;
    int64_t seqlen_q, seqlen_kv;
  } cases[] = {
      {"prefix_tree", ranges::prefix_tree({40, 20, 30}, {-1, 0, 0}), true, kKeys, kKeys},
      {"bidirectional_spans", ranges::bidirectional_spans(kKeys, {{5, 40}, {50, 90}}), false, kKeys, kKeys},
      {"block_diffusion", ranges::block_diffusion(kQueries, kKeys, 16), false, kQueries, kKeys},
      {"flash_mask", ranges::flash_mask(hidden, {1, 4, kKeys, 2}, true, kQueries), true, kQueries, kKeys},
      {"window", ranges::window(kQueries, kKeys, 9, 12), false, kQueries, kKeys},
      {"documents", ranges::documents(ids), false, kKeys, kKeys},
      {"blocks", ranges::blocks(map, 30, 32, kQueries, kKeys), false, kQueries, kKeys},
  };
  for (const auto& [name, ranges, is_of_queries, seqlen_q, seqlen_kv] : cases) {
    Matrix visible;
    for (int64_t head = 0; head < ranges.shape[1]; ++head) {
      const Matrix of_head = is_of_queries ? shown_queries(ranges, seqlen_q, head) : shown_keys(ranges, seqlen_kv);
      visible.insert(visible.end(), of_head.begin(), of_head.end());
    }
    const Mask dense = Mask::dense(ts::view(visible.data(), ts::boolean, {1, ranges.shape[1], seqlen_q, seqlen_kv}));
    const Mask mask = is_of_queries ? Mask::query_ranges(ranges.view()) : Mask::key_ranges(ranges.view());
    for (const char* kernel : {"", "reference.attention"}) {
      const Attention got(seqlen_q, seqlen_kv, kernel, mask), expected(seqlen_q, seqlen_kv, kernel, dense);
      expect_near(got.out, expected.out, name);
      expect_near(got.lse, expected.lse, name);
    }
  }
}

void expect_error(const std::function<void()>& call, const std::string& message) {
  try {
    call();
    ADD_FAILURE() << "no error: " << message;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_EQ(error.what(), message);
  }
}

TEST(Ranges, ErrorsOfTreesAndSpans) {
  const std::vector<int64_t> long_lengths(3, int64_t{1} << 30);
  const std::pair<std::function<void()>, const char*> cases[] = {
      {[] { ranges::prefix_tree({}, {}); }, "prefix_tree: lengths is empty, expected at least one segment"},
      {[] {
         ranges::prefix_tree({1, 2}, {-1});
       },
       "prefix_tree: parents has 1 entries, expected 2 as lengths"},
      {[] {
         ranges::prefix_tree({2, -1}, {-1, 0});
       },
       "prefix_tree: lengths has the entry -1, expected 0 to 2147483647"},
      {[&] {
         ranges::prefix_tree(long_lengths, {-1, 0, 0});
       },
       "prefix_tree: the sum of lengths is 3221225472, expected 0 to 2147483647"},
      {[] { ranges::prefix_tree({1}, {0}); }, "prefix_tree: parents[0] is 0, expected -1"},
      {[] {
         ranges::prefix_tree({1, 1}, {-1, -2});
       },
       "prefix_tree: parents[1] is -2, expected -1, 0 or a segment that 0 continues (depth-first order)"},
      // Breadth first: both children before the grandchild of the first.
      {[] {
         ranges::prefix_tree({1, 1, 1, 1}, {-1, 0, 0, 1});
       },
       "prefix_tree: parents[3] is 1, expected -1, 2 or a segment that 2 continues (depth-first order)"},
      {[] { ranges::bidirectional_spans(-1, {}); }, "bidirectional_spans: seqlen is -1, expected 0 to 2147483647"},
      {[] {
         ranges::bidirectional_spans(9, {{1, 4}, {3, 5}});
       },
       "bidirectional_spans: spans[1] is [3, 5), expected 4 <= start <= end <= 9: sorted, disjoint and inside the "
       "sequence"},
      {[] {
         ranges::bidirectional_spans(9, {{4, 1}});
       },
       "bidirectional_spans: spans[0] is [4, 1), expected 0 <= start <= end <= 9: sorted, disjoint and inside the "
       "sequence"},
      {[] {
         ranges::bidirectional_spans(9, {{4, 10}});
       },
       "bidirectional_spans: spans[0] is [4, 10), expected 0 <= start <= end <= 9: sorted, disjoint and inside the "
       "sequence"},
  };
  for (const auto& [call, message] : cases) expect_error(call, message);
}

TEST(Ranges, ErrorsOfTheOthers) {
  std::vector<uint8_t> stripes(17);
  for (size_t at = 0; at < stripes.size(); at += 2) stripes[at] = 1;
  const std::pair<std::function<void()>, const char*> cases[] = {
      {[] { ranges::block_diffusion(4, 4, 0); }, "block_diffusion: block is 0, expected 1 to 2147483647"},
      {[] { ranges::block_diffusion(-4, 4, 2); }, "block_diffusion: seqlen_q is -4, expected 0 to 2147483647"},
      {[] { ranges::window(4, 4, -2, 0); }, "window: left is -2, expected -1 to 2147483647"},
      {[] {
         ranges::flash_mask({0, 0}, {1, 1, 2, 1}, false, 4);
       },
       "flash_mask: startend_row_indices has shape (1, 1, 2, 1), expected 2 or 4 numbers a key where causal is false"},
      {[] {
         ranges::flash_mask({0, 0, 0, 0}, {1, 1, 1, 4}, true, 4);
       },
       "flash_mask: startend_row_indices has shape (1, 1, 1, 4), expected 1 or 2 numbers a key where causal is true"},
      {[] {
         ranges::flash_mask({0, 0}, {1, 3, 1, 1}, true, 4);
       },
       "flash_mask: startend_row_indices has 2 entries, expected those of shape (1, 3, 1, 1)"},
      {[] {
         ranges::flash_mask({0}, {-1, -1, 1, 1}, true, 4);
       },
       "flash_mask: an axis of shape is -1, expected 0 to 2147483647"},
      {[] {
         ranges::flash_mask({0, 5}, {1, 1, 2, 1}, true, 4);
       },
       "flash_mask: startend_row_indices has the entry 5, expected 0 to 4"},
      {[] {
         ranges::documents({3, 2});
       },
       "documents: ids_q[1] is 2, expected at least 3, the id before"},
      {[] {
         ranges::documents({3, 2}, {0, 1, 0});
       },
       "documents: ids_kv[2] is 0, expected at least 1, the id before"},
      {[] { ranges::blocks(std::vector<uint8_t>(4), 4, 4, 8, 9); },
       "blocks: visible has 4 entries, expected those of shape (2, 3)"},
      {[] { ranges::blocks({}, 0, 4, 8, 9); }, "blocks: block_q is 0, expected 1 to 2147483647"},
      {[&] { ranges::blocks(stripes, 4, 4, 4, 68); },
       "blocks: visible has a row of 9 runs, expected at most 8; Mask::block_map takes it"},
  };
  for (const auto& [call, message] : cases) expect_error(call, message);
}

}  // namespace
}  // namespace tessella::tests
