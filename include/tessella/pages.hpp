// Pages: which sequence holds which pages of a cache, with copy on write. It knows no memory; PagedCache has that too.
//
//   ts::Pages pages(num_pages, page_size);
//   const int64_t parent = pages.new_sequence();
//   pages.reserve({parent}, {100});              // 100 rows, and pages for them
//   const int64_t child = pages.fork(parent);    // the same rows in the same pages
//   std::vector<ts::PageCopy> copies = pages.reserve({parent, child}, {101, 101});  // to be made in every pool
//   ts::PageTable table = pages.page_table({parent, child});
//
// What each step means: tessella.h. Failures throw tessella::Error; nothing is changed then. Threads may share it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include <tessella/tensor.hpp>

namespace tessella {

using PageCopy = tessella_page_copy;  // {source, target}

// Rows of page_table in host memory.
struct PageTable {
  std::vector<int32_t> entries = {};
  int64_t num_sequences = 0;
  int64_t num_columns = 0;

  // (num_sequences, num_columns) i32; valid while the table is.
  TensorView view() const { return tessella::view(entries.data(), i32, {num_sequences, num_columns}); }
};

class Pages {
 public:
  Pages(int64_t num_pages, int64_t page_size) : num_pages_(num_pages), page_size_(page_size) {
    tessella_pages* pages = nullptr;
    detail::check(tessella_pages_make(num_pages, page_size, &pages));
    pages_.reset(pages);
  }

  int64_t num_pages() const { return num_pages_; }
  int64_t page_size() const { return page_size_; }
  int64_t num_free() const {
    int64_t num_free = 0;
    detail::check(tessella_pages_num_free(pages_.get(), &num_free));
    return num_free;
  }

  int64_t new_sequence() {
    int64_t id = 0;
    detail::check(tessella_pages_new_sequence(pages_.get(), &id));
    return id;
  }
  int64_t fork(int64_t id) {
    int64_t child = 0;
    detail::check(tessella_pages_fork(pages_.get(), id, &child));
    return child;
  }
  void release(const std::vector<int64_t>& ids) {
    detail::check(tessella_pages_release(pages_.get(), ids.data(), size_of(ids)));
  }

  // Gives the sequences these lengths, none less than before, and pages for them. The copies are to be made before
  // anything else is written to the pools.
  [[nodiscard]] std::vector<PageCopy> reserve(const std::vector<int64_t>& ids, const std::vector<int64_t>& lengths) {
    require_lengths("pages_reserve: lengths has another size than ids, expected a length for each", ids, lengths);
    std::vector<PageCopy> copies(ids.size());
    int64_t num_copies = 0;
    detail::check(
        tessella_pages_reserve(pages_.get(), ids.data(), lengths.data(), size_of(ids), copies.data(), &num_copies));
    copies.resize(static_cast<size_t>(num_copies));
    return copies;
  }
  // Gives the sequences these lengths, none more than before, and none less than the end of evicted pages.
  void truncate(const std::vector<int64_t>& ids, const std::vector<int64_t>& lengths) {
    require_lengths("pages_truncate: lengths has another size than ids, expected a length for each", ids, lengths);
    detail::check(tessella_pages_truncate(pages_.get(), ids.data(), lengths.data(), size_of(ids)));
  }

  // Drops the pages all of whose rows are in [keep_first, before): no query of a window sees them again. They are -1 in
  // the page table; lengths stay. before: one for all sequences, or one for each, none more than its length. Rows count
  // from 0, left padding too.
  void evict(const std::vector<int64_t>& ids, std::vector<int64_t> before, int64_t keep_first = 0) {
    if (before.size() == 1) before.resize(ids.size(), before[0]);
    require_lengths("pages_evict: before has another size than ids, expected one number, or one for each", ids, before);
    detail::check(tessella_pages_evict(pages_.get(), ids.data(), before.data(), size_of(ids), keep_first));
  }

  std::vector<int64_t> lengths(const std::vector<int64_t>& ids) const {
    std::vector<int64_t> lengths(ids.size());
    detail::check(tessella_pages_lengths(pages_.get(), ids.data(), size_of(ids), lengths.data()));
    return lengths;
  }
  // As seqlens_kv has them.
  std::vector<int32_t> seqlens(const std::vector<int64_t>& ids) const {
    const std::vector<int64_t> found = lengths(ids);
    return {found.begin(), found.end()};
  }
  // num_columns: 0 = as many as the longest sequence needs. Evicted pages are -1, and columns after a
  // sequence's pages.
  PageTable page_table(const std::vector<int64_t>& ids, int64_t num_columns = 0) const {
    if (num_columns == 0) {
      num_columns = 1;
      for (const int64_t length : lengths(ids)) num_columns = std::max(num_columns, (length - 1) / page_size_ + 1);
    }
    PageTable table{std::vector<int32_t>(ids.size() * static_cast<size_t>(num_columns)), size_of(ids), num_columns};
    detail::check(
        tessella_pages_table(pages_.get(), ids.data(), size_of(ids), table.entries.data(), num_columns, num_columns));
    return table;
  }

 private:
  struct Free {
    void operator()(tessella_pages* pages) const { tessella_pages_free(pages); }
  };
  static int64_t size_of(const std::vector<int64_t>& ids) { return static_cast<int64_t>(ids.size()); }
  static void require_lengths(const char* message, const std::vector<int64_t>& ids,
                              const std::vector<int64_t>& lengths) {
    if (ids.size() != lengths.size()) throw Error(ErrorCode::invalid_argument, message);
  }

  int64_t num_pages_, page_size_;
  std::unique_ptr<tessella_pages, Free> pages_;
};

}  // namespace tessella
