// Pages through what the library exports: the C functions' own checks, the C++ class over them, and threads.
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "tessella/pages.hpp"

namespace ts = tessella;

namespace {

using Ids = std::vector<int64_t>;

void expect_error(tessella_status status, tessella_status expected, const std::string& sentence) {
  EXPECT_EQ(status, expected);
  EXPECT_EQ(tessella_last_error(), sentence);
}

TEST(PagesApi, EachPointerAndCountIsChecked) {
  expect_error(tessella_pages_make(4, 4, nullptr), TESSELLA_INVALID_ARGUMENT,
               "pages_make: pages is NULL, expected a pointer");
  tessella_pages* pages = nullptr;
  expect_error(tessella_pages_make(4, 0, &pages), TESSELLA_INVALID_ARGUMENT,
               "pages_make: page_size is 0, expected 1 to 2147483647");
  EXPECT_EQ(pages, nullptr);
  ASSERT_EQ(tessella_pages_make(4, 4, &pages), TESSELLA_OK);

  int64_t id = -7, number = -7;
  const auto null = [](const std::string& function, const std::string& argument) {
    return function + ": " + argument + " is NULL, expected a pointer";
  };
  const auto invalid = TESSELLA_INVALID_ARGUMENT;
  expect_error(tessella_pages_new_sequence(nullptr, &id), invalid, null("pages_new_sequence", "pages"));
  expect_error(tessella_pages_new_sequence(pages, nullptr), invalid, null("pages_new_sequence", "id"));
  ASSERT_EQ(tessella_pages_new_sequence(pages, &id), TESSELLA_OK);
  EXPECT_EQ(id, 0);
  expect_error(tessella_pages_fork(nullptr, id, &number), invalid, null("pages_fork", "pages"));
  expect_error(tessella_pages_fork(pages, id, nullptr), invalid, null("pages_fork", "child"));

  const int64_t length = 3;
  tessella_page_copy copy{-7, -7};
  expect_error(tessella_pages_release(pages, nullptr, 1), invalid, null("pages_release", "ids"));
  expect_error(tessella_pages_release(pages, &id, -1), invalid, "pages_release: num_ids is -1, expected at least 0");
  expect_error(tessella_pages_reserve(pages, nullptr, &length, 1, &copy, &number), invalid,
               null("pages_reserve", "ids"));
  expect_error(tessella_pages_reserve(pages, &id, nullptr, 1, &copy, &number), invalid,
               null("pages_reserve", "lengths"));
  expect_error(tessella_pages_reserve(pages, &id, &length, 1, nullptr, &number), invalid,
               null("pages_reserve", "copies"));
  expect_error(tessella_pages_reserve(pages, &id, &length, 1, &copy, nullptr), invalid,
               null("pages_reserve", "num_copies"));
  expect_error(tessella_pages_truncate(pages, &id, nullptr, 1), invalid, null("pages_truncate", "lengths"));
  expect_error(tessella_pages_evict(pages, &id, nullptr, 1, 0), invalid, null("pages_evict", "before"));
  expect_error(tessella_pages_evict(pages, nullptr, &id, 1, 0), invalid, null("pages_evict", "ids"));
  expect_error(tessella_pages_evict(nullptr, &id, &id, 1, 0), invalid, null("pages_evict", "pages"));
  expect_error(tessella_pages_lengths(pages, &id, 1, nullptr), invalid, null("pages_lengths", "lengths"));
  expect_error(tessella_pages_num_free(pages, nullptr), invalid, null("pages_num_free", "num_free"));
  int32_t entry = -7;
  expect_error(tessella_pages_table(pages, &id, 1, nullptr, 1, 1), invalid, null("pages_table", "table"));
  expect_error(tessella_pages_table(pages, &id, 1, &entry, 2, 1), invalid,
               "pages_table: num_columns is 2 and row_stride 1, expected 0 or more and at least as many");
  expect_error(tessella_pages_table(pages, &id, 1, &entry, -1, 1), invalid,
               "pages_table: num_columns is -1 and row_stride 1, expected 0 or more and at least as many");
  EXPECT_EQ(entry, -7);
  EXPECT_EQ(copy.source, -7);

  ASSERT_EQ(tessella_pages_num_free(pages, &number), TESSELLA_OK);
  EXPECT_EQ(number, 4);
  ASSERT_EQ(tessella_pages_reserve(pages, nullptr, nullptr, 0, nullptr, &number), TESSELLA_OK);
  EXPECT_EQ(number, 0);
  const int64_t all = 17;
  expect_error(tessella_pages_reserve(pages, &id, &all, 1, &copy, &number), TESSELLA_OUT_OF_MEMORY,
               "pages_reserve: 5 more pages are needed, and 4 of 4 are free");
  tessella_pages_free(pages);
  tessella_pages_free(nullptr);
}

TEST(PagesApi, ForkReserveTruncateRelease) {
  ts::Pages pages(8, 4);
  EXPECT_EQ(pages.num_pages(), 8);
  EXPECT_EQ(pages.page_size(), 4);
  const int64_t parent = pages.new_sequence();
  EXPECT_TRUE(pages.reserve({parent}, {6}).empty());
  const int64_t child = pages.fork(parent);
  EXPECT_EQ(pages.num_free(), 6);
  const std::vector<ts::PageCopy> copies = pages.reserve({child, parent}, {7, 9});
  ASSERT_EQ(copies.size(), 1U);
  EXPECT_EQ(copies[0].source, 1);
  EXPECT_EQ(copies[0].target, 2);
  EXPECT_EQ(pages.lengths({parent, child}), (Ids{9, 7}));
  EXPECT_EQ(pages.seqlens({parent, child}), (std::vector<int32_t>{9, 7}));

  const ts::PageTable table = pages.page_table({child, parent});
  EXPECT_EQ(table.entries, (std::vector<int32_t>{0, 2, -1, 0, 1, 3}));
  EXPECT_EQ(table.view().shape(0), 2);
  EXPECT_EQ(table.view().shape(1), 3);
  EXPECT_EQ(table.view().dtype(), ts::i32);
  EXPECT_EQ(table.view().data(), table.entries.data());
  EXPECT_EQ(pages.page_table({child}, 4).entries, (std::vector<int32_t>{0, 2, -1, -1}));
  EXPECT_EQ(pages.page_table({pages.new_sequence()}).entries, std::vector<int32_t>{-1});

  pages.truncate({parent}, {0});
  EXPECT_EQ(pages.num_free(), 6);
  pages.release({parent, child});
  EXPECT_EQ(pages.num_free(), 8);
  const ts::Pages moved = std::move(pages);
  EXPECT_EQ(moved.num_free(), 8);
}

// before: one number for all, or one for each.
TEST(PagesApi, Evict) {
  ts::Pages pages(8, 4);
  const int64_t a = pages.new_sequence(), b = pages.new_sequence();
  (void)pages.reserve({a, b}, {12, 8});
  pages.evict({a, b}, {7});
  EXPECT_EQ(pages.page_table({a, b}).entries, (std::vector<int32_t>{-1, 1, 2, -1, 4, -1}));
  pages.evict({a, b}, {12, -3});
  EXPECT_EQ(pages.page_table({a, b}).entries, (std::vector<int32_t>{-1, -1, -1, -1, 4, -1}));
  EXPECT_EQ(pages.num_free(), 7);
  EXPECT_EQ(pages.lengths({a, b}), (Ids{12, 8}));
  pages.evict({}, {5});
  const int64_t c = pages.new_sequence();
  (void)pages.reserve({c}, {8});
  pages.evict({c}, {8}, 3);
  EXPECT_EQ(pages.page_table({c}).entries[1], -1);
  EXPECT_NE(pages.page_table({c}).entries[0], -1);
}

TEST(PagesApi, ErrorsAreThrown) {
  ts::Pages pages(2, 4);
  const int64_t id = pages.new_sequence();
  const auto code_of = [](const auto& call) {
    try {
      call();
    } catch (const ts::Error& error) {
      return error.code();
    }
    return ts::ErrorCode::internal;
  };
  EXPECT_EQ(code_of([] { ts::Pages(0, 1); }), ts::ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] { pages.fork(id + 1); }), ts::ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] { (void)pages.reserve({id}, {}); }), ts::ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] { pages.truncate({id}, {0, 0}); }), ts::ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] { pages.evict({id}, {0, 0}); }), ts::ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] { pages.evict({id}, {1}); }), ts::ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] { (void)pages.reserve({id}, {9}); }), ts::ErrorCode::out_of_memory);
  EXPECT_EQ(pages.num_free(), 2);
}

// Each thread grows, forks and releases sequences of its own in pages of all; at the end none is lost.
TEST(PagesApi, ThreadsShareAnObject) {
  ts::Pages pages(1000, 4);
  const auto work = [&] {
    for (int64_t round = 1; round <= 5000; ++round) {
      const int64_t parent = pages.new_sequence();
      (void)pages.reserve({parent}, {round % 30 + 1});
      const int64_t child = pages.fork(parent);
      (void)pages.reserve({parent, child}, {round % 30 + 5, round % 30 + 9});
      EXPECT_EQ(pages.lengths({parent, child}), (Ids{round % 30 + 5, round % 30 + 9}));
      pages.release({parent, child});
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pages.num_free(), 1000);
}

}  // namespace
