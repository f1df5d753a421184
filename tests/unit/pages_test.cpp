// The allocator of pages: random walks beside a model that keeps every sequence's rows by value, and each failure by
// hand.
#include "cache/pages.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>

#include "core/error.hpp"

namespace tessella::tests {
namespace {

using core::Pages;
using Ids = std::vector<int64_t>;

std::vector<int32_t> table_row(const Pages& pages, int64_t id, int64_t num_columns) {
  std::vector<int32_t> row(static_cast<size_t>(num_columns), -7);
  pages.table(Ids{id}, row.data(), num_columns, num_columns);
  return row;
}

int64_t length_of(const Pages& pages, int64_t id) {
  int64_t length = -7;
  pages.lengths(Ids{id}, &length);
  return length;
}

// Pages over a pool of numbers; beside them every sequence's rows by value.
class Walk {
 public:
  Walk(int64_t num_pages, int64_t page_size, uint32_t seed)
      : num_pages_(num_pages), page_size_(page_size), pages_(num_pages, page_size), random_(seed) {
    pool_.resize(static_cast<size_t>(num_pages * page_size), -1);
  }

  void run(int num_steps) {
    for (int step = 0; step < num_steps; ++step) {
      switch (up_to(10)) {
        case 0: add(pages_.new_sequence(), {}); break;
        case 1: fork(); break;
        case 2: release(); break;
        case 3:
        case 4: truncate(); break;
        case 5: evict(); break;
        default: reserve();
      }
      ASSERT_NO_FATAL_FAILURE(check()) << "step " << step;
    }
    Ids all;
    for (const auto& [id, rows] : rows_) all.push_back(id);
    pages_.release(all);
    rows_.clear();
    evicted_.clear();
    EXPECT_EQ(pages_.num_free(), num_pages_);
    EXPECT_GT(num_copies_, 0);
    EXPECT_GT(num_errors_, 0);
    EXPECT_GT(num_evicted_, 0);
  }

 private:
  int64_t up_to(int64_t most) { return std::uniform_int_distribution<int64_t>(0, most)(random_); }
  void add(int64_t id, std::vector<int64_t> rows) { ASSERT_TRUE(rows_.emplace(id, std::move(rows)).second) << id; }
  Ids some() {
    Ids ids;
    for (const auto& [id, rows] : rows_) {
      if (up_to(1) == 0) ids.push_back(id);
    }
    std::shuffle(ids.begin(), ids.end(), random_);
    return ids;
  }

  void fork() {
    const Ids ids = some();
    if (ids.empty()) return;
    const int64_t child = pages_.fork(ids[0]);
    add(child, rows_.at(ids[0]));
    evicted_[child] = evicted_[ids[0]];
  }

  void release() {
    Ids ids = some();
    if (ids.size() > 2) ids.resize(2);
    pages_.release(ids);
    for (const int64_t id : ids) rows_.erase(id), evicted_.erase(id);
  }

  void truncate() {
    const Ids ids = some();
    Ids lengths;
    for (const int64_t id : ids) {
      const int64_t end = evicted_[id].empty() ? 0 : (*evicted_[id].rbegin() + 1) * page_size_;
      lengths.push_back(end + up_to(std::ssize(rows_.at(id)) - end));
      if (end == 0) continue;
      EXPECT_THROW(pages_.truncate(Ids{id}, Ids{end - 1}), core::Error);
    }
    pages_.truncate(ids, lengths);
    for (size_t i = 0; i < ids.size(); ++i) rows_.at(ids[i]).resize(static_cast<size_t>(lengths[i]));
  }

  // Of some sequences all rows but the first and the last ones; of some too few for a page.
  void evict() {
    const Ids ids = some();
    const int64_t keep_first = up_to(1) * up_to(2 * page_size_);
    Ids before;
    for (const int64_t id : ids) before.push_back(up_to(std::ssize(rows_.at(id)) + page_size_) - page_size_);
    pages_.evict(ids, before, keep_first);
    for (size_t i = 0; i < ids.size(); ++i) {
      for (int64_t page = 0; (page + 1) * page_size_ <= before[i]; ++page) {
        if (page * page_size_ < keep_first) continue;
        evicted_[ids[i]].insert(page);
        ++num_evicted_;
      }
    }
  }

  void reserve() {
    const Ids ids = some();
    Ids lengths;
    for (const int64_t id : ids) lengths.push_back(std::ssize(rows_.at(id)) + up_to(2 * page_size_));
    std::vector<core::PageCopy> copies;
    try {
      copies = pages_.reserve(ids, lengths);
    } catch (const core::Error& error) {
      ASSERT_EQ(error.code(), core::ErrorCode::out_of_memory) << error.what();
      ++num_errors_;
      return;
    }
    num_copies_ += static_cast<int>(copies.size());
    std::shuffle(copies.begin(), copies.end(), random_);
    for (const auto [source, target] : copies) {
      std::copy_n(pool_.begin() + source * page_size_, page_size_, pool_.begin() + target * page_size_);
    }
    for (size_t i = 0; i < ids.size(); ++i) {
      std::vector<int64_t>& rows = rows_.at(ids[i]);
      const auto pages = table_row(pages_, ids[i], num_pages_);
      for (int64_t row = std::ssize(rows); row < lengths[i]; ++row) {
        rows.push_back(next_value_++);
        pool_[pool_idx(pages, row)] = rows.back();
      }
    }
  }

  size_t pool_idx(const std::vector<int32_t>& pages, int64_t row) const {
    return static_cast<size_t>(pages[static_cast<size_t>(row / page_size_)] * page_size_ + row % page_size_);
  }

  // Every sequence reads its own rows, and what no sequence holds is free.
  void check() {
    std::set<int32_t> held;
    for (const auto& [id, rows] : rows_) {
      ASSERT_EQ(length_of(pages_, id), std::ssize(rows)) << "sequence " << id;
      const auto pages = table_row(pages_, id, num_pages_);
      for (size_t i = 0; i < pages.size(); ++i) {
        const bool is_evicted = evicted_[id].contains(static_cast<int64_t>(i));
        if (static_cast<int64_t>(i) * page_size_ < std::ssize(rows) && !is_evicted) {
          ASSERT_TRUE(pages[i] >= 0 && pages[i] < num_pages_) << pages[i];
          held.insert(pages[i]);
        } else {
          ASSERT_EQ(pages[i], -1);
        }
      }
      for (size_t row = 0; row < rows.size(); ++row) {
        if (evicted_[id].contains(static_cast<int64_t>(row) / page_size_)) continue;
        ASSERT_EQ(pool_[pool_idx(pages, static_cast<int64_t>(row))], rows[row]) << "row " << row << " of " << id;
      }
    }
    ASSERT_EQ(pages_.num_free(), num_pages_ - std::ssize(held));
  }

  int64_t num_pages_, page_size_;
  Pages pages_;
  std::mt19937 random_;
  std::vector<int64_t> pool_;
  std::map<int64_t, std::vector<int64_t>> rows_;
  std::map<int64_t, std::set<int64_t>> evicted_;  // pages of each sequence
  int64_t next_value_ = 0;
  int num_copies_ = 0, num_errors_ = 0, num_evicted_ = 0;
};

TEST(Pages, RandomWalks) {
  for (const int64_t page_size : {2, 3, 16}) {
    for (uint32_t seed = 0; seed < 40; ++seed) {
      SCOPED_TRACE("page_size " + std::to_string(page_size) + " seed " + std::to_string(seed));
      Walk(24, page_size, seed).run(400);
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(Pages, PagesOfARowAreNeverCopied) {
  Pages pages(4, 1);
  const int64_t parent = pages.new_sequence();
  pages.reserve(Ids{parent}, Ids{2});
  const int64_t child = pages.fork(parent);
  EXPECT_TRUE(pages.reserve(Ids{parent, child}, Ids{3, 3}).empty());
  EXPECT_EQ(table_row(pages, parent, 3), (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(table_row(pages, child, 3), (std::vector<int32_t>{0, 1, 3}));
}

// Of three that hold a page and write, two get copies and the last keeps it.
TEST(Pages, TheLastHolderWritesInPlace) {
  Pages pages(4, 4);
  const int64_t a = pages.new_sequence();
  pages.reserve(Ids{a}, Ids{3});
  const int64_t b = pages.fork(a), c = pages.fork(b);
  EXPECT_EQ(pages.num_free(), 3);
  const auto copies = pages.reserve(Ids{a, b, c}, Ids{4, 4, 4});
  ASSERT_EQ(copies.size(), 2U);
  EXPECT_EQ(copies[0].source, 0);
  EXPECT_EQ(copies[1].source, 0);
  EXPECT_NE(copies[0].target, copies[1].target);
  EXPECT_EQ(table_row(pages, c, 1), std::vector<int32_t>{0});
  EXPECT_TRUE(pages.reserve(Ids{a, b, c}, Ids{4, 4, 4}).empty());  // nothing is written
}

TEST(Pages, AFullPageIsSharedForGood) {
  Pages pages(3, 4);
  const int64_t a = pages.new_sequence();
  pages.reserve(Ids{a}, Ids{4});
  const int64_t b = pages.fork(a);
  EXPECT_TRUE(pages.reserve(Ids{a, b}, Ids{5, 5}).empty());
  pages.truncate(Ids{b}, Ids{2});  // row 2 is to be written anew, and a still reads its own
  const auto copies = pages.reserve(Ids{b}, Ids{3});
  ASSERT_EQ(copies.size(), 1U);
  EXPECT_EQ(copies[0].source, 0);
}

// A page is free when its last holder has dropped it; the one with the next row stays.
TEST(Pages, EvictedPagesAreFreeAndStayGone) {
  Pages pages(4, 4);
  const int64_t a = pages.new_sequence();
  pages.reserve(Ids{a}, Ids{10});
  const int64_t b = pages.fork(a);
  pages.evict(Ids{a}, Ids{7}, 0);
  EXPECT_EQ(table_row(pages, a, 3), (std::vector<int32_t>{-1, 1, 2}));
  EXPECT_EQ(table_row(pages, b, 3), (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(pages.num_free(), 1);
  const int64_t c = pages.fork(a);
  EXPECT_EQ(table_row(pages, c, 3), (std::vector<int32_t>{-1, 1, 2}));
  pages.evict(Ids{c, a, b}, Ids{-5, 10, 10}, 0);
  EXPECT_EQ(table_row(pages, a, 3), (std::vector<int32_t>{-1, -1, 2}));
  EXPECT_EQ(table_row(pages, b, 3), (std::vector<int32_t>{-1, -1, 2}));
  EXPECT_EQ(table_row(pages, c, 3), (std::vector<int32_t>{-1, 1, 2}));
  EXPECT_EQ(pages.num_free(), 2);
  pages.release(Ids{b, c});
  EXPECT_EQ(pages.num_free(), 3);
  EXPECT_TRUE(pages.reserve(Ids{a}, Ids{14}).empty());
  EXPECT_EQ(table_row(pages, a, 4)[0], -1);
  EXPECT_EQ(length_of(pages, a), 14);
  pages.truncate(Ids{a}, Ids{8});
  EXPECT_EQ(table_row(pages, a, 2), (std::vector<int32_t>{-1, -1}));
  EXPECT_EQ(pages.num_free(), 4);
  EXPECT_TRUE(pages.reserve(Ids{a}, Ids{9}).empty());
  EXPECT_EQ(pages.num_free(), 3);
}

TEST(Pages, EvictKeepsTheFirstRows) {
  Pages pages(5, 4);
  const int64_t a = pages.new_sequence();
  pages.reserve(Ids{a}, Ids{20});
  pages.evict(Ids{a}, Ids{20}, 5);
  EXPECT_EQ(table_row(pages, a, 5), (std::vector<int32_t>{0, 1, -1, -1, -1}));
  pages.evict(Ids{a}, Ids{20}, 4);
  EXPECT_EQ(table_row(pages, a, 5), (std::vector<int32_t>{0, -1, -1, -1, -1}));
  pages.evict(Ids{a}, Ids{20}, int64_t{1} << 62);
  EXPECT_EQ(pages.num_free(), 4);
}

// The copies count too, of the sequences that need them only.
TEST(Pages, OutOfMemoryLeavesAllAsItWas) {
  Pages pages(2, 4);
  const int64_t a = pages.new_sequence();
  pages.reserve(Ids{a}, Ids{3});
  const int64_t b = pages.fork(a), c = pages.fork(a);
  try {
    pages.reserve(Ids{a, b, c}, Ids{4, 4, 4});
    FAIL();
  } catch (const core::Error& error) {
    EXPECT_EQ(error.code(), core::ErrorCode::out_of_memory);
    EXPECT_STREQ(error.what(), "pages_reserve: 2 more pages are needed, and 1 of 2 are free");
  }
  EXPECT_EQ(pages.num_free(), 1);
  for (const int64_t id : {a, b, c}) {
    EXPECT_EQ(length_of(pages, id), 3);
    EXPECT_EQ(table_row(pages, id, 2), (std::vector<int32_t>{0, -1}));
  }
  pages.release(Ids{c});
  EXPECT_EQ(pages.reserve(Ids{b, a}, Ids{4, 4}).size(), 1U);  // a is the last holder now
  EXPECT_EQ(pages.num_free(), 0);
  EXPECT_EQ(pages.reserve(Ids{}, Ids{}).size(), 0U);
}

TEST(Pages, TableHasAStrideAndPadsWithMinusOne) {
  Pages pages(8, 2);
  const int64_t a = pages.new_sequence(), b = pages.new_sequence();
  pages.reserve(Ids{a, b}, Ids{3, 0});
  std::vector<int32_t> table(10, 9);
  pages.table(Ids{a, b, a}, table.data(), 2, 4);
  EXPECT_EQ(table, (std::vector<int32_t>{0, 1, 9, 9, -1, -1, 9, 9, 0, 1}));
}

// Nothing of the pool's size is held: a walk of the largest pool costs nothing.
TEST(Pages, TheLargestPool) {
  Pages pages(2147483647, 1);
  const int64_t a = pages.new_sequence();
  pages.reserve(Ids{a}, Ids{5});
  EXPECT_EQ(pages.num_free(), 2147483642);
  EXPECT_THROW(pages.reserve(Ids{a, pages.new_sequence()}, Ids{2147483647, 2147483647}), core::Error);
  EXPECT_EQ(pages.num_free(), 2147483642);
}

TEST(Pages, EachBadCallHasItsSentence) {
  Pages pages(5, 4);
  const int64_t a = pages.new_sequence(), b = pages.new_sequence(), gone = pages.new_sequence();
  pages.release(Ids{gone});
  pages.reserve(Ids{a}, Ids{5});
  const int64_t evicted = pages.new_sequence();
  pages.reserve(Ids{evicted}, Ids{9});
  pages.evict(Ids{evicted}, Ids{8}, 0);
  const std::vector<std::pair<std::function<void()>, std::string>> calls = {
      {[] { Pages(0, 4); }, "pages_make: num_pages is 0, expected 1 to 2147483647"},
      {[] { Pages(4, int64_t{1} << 31); }, "pages_make: page_size is 2147483648, expected 1 to 2147483647"},
      {[&] { pages.fork(-1); }, "pages_fork: id is -1, expected a sequence that was made and is not released"},
      {[&] {
         pages.release(Ids{a, gone});
       },
       "pages_release: ids[1] is 2, expected a sequence that was made and is not released"},
      {[&] {
         pages.release(Ids{a, b, a});
       },
       "pages_release: ids has 0 twice, expected each sequence once"},
      {[&] {
         pages.reserve(Ids{b, b}, Ids{1, 2});
       },
       "pages_reserve: ids has 1 twice, expected each sequence once"},
      {[&] {
         pages.reserve(Ids{b, a}, Ids{1, 4});
       },
       "pages_reserve: lengths[1] is 4, expected 5, the length of sequence 0, to 2147483647"},
      {[&] { pages.reserve(Ids{b}, Ids{int64_t{1} << 31}); },
       "pages_reserve: lengths[0] is 2147483648, expected 0, the length of sequence 1, to 2147483647"},
      {[&] {
         pages.truncate(Ids{b, a}, Ids{0, 6});
       },
       "pages_truncate: lengths[1] is 6, expected 0 to 5, the length of sequence 0"},
      {[&] { pages.truncate(Ids{a}, Ids{-1}); },
       "pages_truncate: lengths[0] is -1, expected 0 to 5, the length of sequence 0"},
      {[&] { pages.truncate(Ids{evicted}, Ids{7}); },
       "pages_truncate: lengths[0] is 7, expected 8, the end of the evicted pages, to 9, the length of sequence 3"},
      {[&] {
         pages.evict(Ids{evicted, a}, Ids{9, 6}, 0);
       },
       "pages_evict: before[1] is 6, expected at most 5, the length of sequence 0"},
      {[&] {
         pages.evict(Ids{a, a}, Ids{1, 1}, 0);
       },
       "pages_evict: ids has 0 twice, expected each sequence once"},
      {[&] { pages.evict(Ids{gone}, Ids{0}, 0); },
       "pages_evict: ids[0] is 2, expected a sequence that was made and is not released"},
      {[&] { pages.evict(Ids{a}, Ids{5}, -1); }, "pages_evict: keep_first is -1, expected at least 0"},
      {[&] { length_of(pages, 4); },
       "pages_lengths: ids[0] is 4, expected a sequence that was made and is not released"},
      {[&] { table_row(pages, a, 1); }, "pages_table: num_columns is 1, expected at least 2, the pages of sequence 0"},
  };
  for (const auto& [call, sentence] : calls) {
    try {
      call();
      ADD_FAILURE() << sentence;
    } catch (const core::Error& error) {
      EXPECT_EQ(error.code(), core::ErrorCode::invalid_argument);
      EXPECT_EQ(error.what(), sentence);
    }
    EXPECT_EQ(length_of(pages, a), 5);
    EXPECT_EQ(length_of(pages, b), 0);
    EXPECT_EQ(table_row(pages, evicted, 3)[2], 4);
    EXPECT_EQ(pages.num_free(), 2);
  }
}

}  // namespace
}  // namespace tessella::tests
