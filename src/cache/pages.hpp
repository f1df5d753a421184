// The pages of a pool and the sequences that hold them, with copy on write. It knows no memory: what it says is true of
// the pools of every layer that have this many pages.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace tessella::core {

struct PageCopy {
  int32_t source;
  int32_t target;
};

// A sequence is a list of pages and a length: its row r is row r % page_size of its page r / page_size. Sequences of
// one fork hold the same pages until one of them writes. A failure leaves all as it was.
class Pages {
 public:
  Pages(int64_t num_pages, int64_t page_size);

  // Ids count from 0, and none is given twice.
  int64_t new_sequence();
  int64_t fork(int64_t id);
  void release(std::span<const int64_t> ids);
  // The lengths from now on, none less than before. Rows from the old length on will be written, so that a page which
  // holds one of them and is held by another sequence too gets a successor: the rows before them are to be copied.
  // At most one copy a sequence. No page is both a source and a target.
  std::vector<PageCopy> reserve(std::span<const int64_t> ids, std::span<const int64_t> lengths);
  // The lengths from now on, none more than before, and none less than the end of a sequence's evicted pages.
  void truncate(std::span<const int64_t> ids, std::span<const int64_t> lengths);
  // Frees the pages of which every row is in [keep_first, before[i]), as far as no other sequence holds them. The rows
  // still count; their pages are -1 from now on.
  void evict(std::span<const int64_t> ids, std::span<const int64_t> before, int64_t keep_first);
  void lengths(std::span<const int64_t> ids, int64_t* lengths) const;
  // A row of pages for each id; columns of evicted pages and beyond a sequence's pages are -1.
  void table(std::span<const int64_t> ids, int32_t* table, int64_t num_columns, int64_t row_stride) const;
  int64_t num_free() const;

 private:
  static constexpr int32_t kEvicted = -1;
  struct Sequence {
    std::vector<int32_t> pages;  // as many as length needs; kEvicted where there is none any more
    int64_t length = 0;
    int64_t evicted_end = 0;  // of the last evicted page, in rows; at most length, so that the tail is never evicted
  };
  // True if the page of the next row also holds rows before it.
  bool has_tail(const Sequence& sequence) const { return sequence.length % page_size_ != 0; }
  int64_t pages_of(int64_t length) const { return length / page_size_ + (length % page_size_ != 0 ? 1 : 0); }
  int32_t take();
  void give_back(int32_t page);
  std::vector<Sequence*> each_once(std::span<const int64_t> ids, const char* function);

  int64_t num_pages_;
  int64_t page_size_;
  std::unordered_map<int64_t, Sequence> sequences_;
  int64_t next_id_ = 0;
  std::vector<int32_t> num_holders_;  // of each page that was ever taken; the others were never
  std::vector<int32_t> free_;         // of those, the ones without a holder
};

}  // namespace tessella::core
