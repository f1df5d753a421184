// The C shim of Pages.
#include <cstdint>
#include <mutex>
#include <span>

#include "api/guarded.hpp"
#include "cache/pages.hpp"
#include "core/message.hpp"
#include "process/fork.hpp"
#include "tessella/tessella.h"

struct tessella_pages {
  tessella::core::Pages pages;
};

namespace {

namespace core = tessella::core;
using tessella::api::guarded;
using tessella::api::require;

// Calls fn(pages), one thread at a time. The lock is one that a fork waits for: the child finds every object whole.
template <typename Object, typename Fn>
tessella_status with_pages(Object* object, const char* function, Fn&& fn) {
  return guarded([&] {
    require(object, function, "pages");
    const std::lock_guard lock(tessella::process::fork_mutex());
    fn(object->pages);
  });
}

template <typename T>
std::span<const T> list(const T* data, int64_t size, const char* function, const char* argument) {
  if (size < 0) core::invalid(core::message(function, ": num_ids is ", size, ", expected at least 0"));
  if (size > 0) require(data, function, argument);
  return {data, static_cast<size_t>(size)};
}

}  // namespace

extern "C" {

tessella_status tessella_pages_make(int64_t num_pages, int64_t page_size, tessella_pages** pages) {
  return guarded([&] {
    require(pages, "pages_make", "pages");
    *pages = new tessella_pages{core::Pages(num_pages, page_size)};
  });
}

void tessella_pages_free(tessella_pages* pages) { delete pages; }

tessella_status tessella_pages_new_sequence(tessella_pages* pages, int64_t* id) {
  return with_pages(pages, "pages_new_sequence", [&](core::Pages& p) {
    require(id, "pages_new_sequence", "id");
    *id = p.new_sequence();
  });
}

tessella_status tessella_pages_fork(tessella_pages* pages, int64_t id, int64_t* child) {
  return with_pages(pages, "pages_fork", [&](core::Pages& p) {
    require(child, "pages_fork", "child");
    *child = p.fork(id);
  });
}

tessella_status tessella_pages_release(tessella_pages* pages, const int64_t* ids, int64_t num_ids) {
  return with_pages(pages, "pages_release",
                    [&](core::Pages& p) { p.release(list(ids, num_ids, "pages_release", "ids")); });
}

tessella_status tessella_pages_reserve(tessella_pages* pages, const int64_t* ids, const int64_t* lengths,
                                       int64_t num_ids, tessella_page_copy* copies, int64_t* num_copies) {
  return with_pages(pages, "pages_reserve", [&](core::Pages& p) {
    const auto given = list(ids, num_ids, "pages_reserve", "ids");
    const auto wanted = list(lengths, num_ids, "pages_reserve", "lengths");
    if (num_ids > 0) require(copies, "pages_reserve", "copies");
    require(num_copies, "pages_reserve", "num_copies");
    *num_copies = 0;
    for (const core::PageCopy& copy : p.reserve(given, wanted)) copies[(*num_copies)++] = {copy.source, copy.target};
  });
}

tessella_status tessella_pages_truncate(tessella_pages* pages, const int64_t* ids, const int64_t* lengths,
                                        int64_t num_ids) {
  return with_pages(pages, "pages_truncate", [&](core::Pages& p) {
    p.truncate(list(ids, num_ids, "pages_truncate", "ids"), list(lengths, num_ids, "pages_truncate", "lengths"));
  });
}

tessella_status tessella_pages_evict(tessella_pages* pages, const int64_t* ids, const int64_t* before, int64_t num_ids,
                                     int64_t keep_first) {
  return with_pages(pages, "pages_evict", [&](core::Pages& p) {
    p.evict(list(ids, num_ids, "pages_evict", "ids"), list(before, num_ids, "pages_evict", "before"), keep_first);
  });
}

tessella_status tessella_pages_lengths(const tessella_pages* pages, const int64_t* ids, int64_t num_ids,
                                       int64_t* lengths) {
  return with_pages(pages, "pages_lengths", [&](const core::Pages& p) {
    if (num_ids > 0) require(lengths, "pages_lengths", "lengths");
    p.lengths(list(ids, num_ids, "pages_lengths", "ids"), lengths);
  });
}

tessella_status tessella_pages_table(const tessella_pages* pages, const int64_t* ids, int64_t num_ids, int32_t* table,
                                     int64_t num_columns, int64_t row_stride) {
  return with_pages(pages, "pages_table", [&](const core::Pages& p) {
    const auto given = list(ids, num_ids, "pages_table", "ids");
    if (num_ids > 0 && num_columns > 0) require(table, "pages_table", "table");
    if (num_columns < 0 || row_stride < num_columns) {
      core::invalid(core::message("pages_table: num_columns is ", num_columns, " and row_stride ", row_stride,
                                  ", expected 0 or more and at least as many"));
    }
    p.table(given, table, num_columns, row_stride);
  });
}

tessella_status tessella_pages_num_free(const tessella_pages* pages, int64_t* num_free) {
  return with_pages(pages, "pages_num_free", [&](const core::Pages& p) {
    require(num_free, "pages_num_free", "num_free");
    *num_free = p.num_free();
  });
}

}  // extern "C"
