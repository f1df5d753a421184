#include "cache/pages.hpp"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "core/message.hpp"

namespace tessella::core {
namespace {

// Page numbers, rows of a page and lengths of sequences are int32 in memory.
constexpr int64_t kLargest = std::numeric_limits<int32_t>::max();

void require_size(int64_t size, const char* argument) {
  if (size < 1 || size > kLargest) {
    invalid(message("pages_make: ", argument, " is ", size, ", expected 1 to ", kLargest));
  }
}

[[noreturn]] void unknown_id(const char* function, const std::string& argument, int64_t id) {
  invalid(message(function, ": ", argument, " is ", id, ", expected a sequence that was made and is not released"));
}

// The sequence ids[idx].
template <typename Map>
auto& sequence_at(Map& sequences, std::span<const int64_t> ids, size_t idx, const char* function) {
  const auto found = sequences.find(ids[idx]);
  if (found == sequences.end()) unknown_id(function, message("ids[", idx, "]"), ids[idx]);
  return found->second;
}

// Room for more elements, so that adding them cannot fail; by doubling, as they are added one by one.
void make_room(std::vector<int32_t>& elements, size_t size) {
  if (size > elements.capacity()) elements.reserve(std::max(size, 2 * elements.capacity()));
}

}  // namespace

Pages::Pages(int64_t num_pages, int64_t page_size) : num_pages_(num_pages), page_size_(page_size) {
  require_size(num_pages, "num_pages");
  require_size(page_size, "page_size");
}

int64_t Pages::num_free() const { return num_pages_ - std::ssize(num_holders_) + std::ssize(free_); }

// There is one, and room for it in the list: reserve() saw to both.
int32_t Pages::take() {
  if (free_.empty()) {
    num_holders_.push_back(1);
    return static_cast<int32_t>(num_holders_.size() - 1);
  }
  const int32_t page = free_.back();
  free_.pop_back();
  num_holders_[static_cast<size_t>(page)] = 1;
  return page;
}

void Pages::give_back(int32_t page) {
  if (page == kEvicted) return;
  if (--num_holders_[static_cast<size_t>(page)] == 0) free_.push_back(page);
}

std::vector<Pages::Sequence*> Pages::each_once(std::span<const int64_t> ids, const char* function) {
  std::vector<Sequence*> found;
  found.reserve(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    found.push_back(&sequence_at(sequences_, ids, i, function));
  }
  std::vector<int64_t> sorted(ids.begin(), ids.end());
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) invalid(message(function, ": ids has ", *twice, " twice, expected each sequence once"));
  return found;
}

int64_t Pages::new_sequence() {
  sequences_.try_emplace(next_id_);
  return next_id_++;
}

int64_t Pages::fork(int64_t id) {
  const auto parent = sequences_.find(id);
  if (parent == sequences_.end()) unknown_id("pages_fork", "id", id);
  Sequence child = parent->second;
  const auto made = sequences_.try_emplace(next_id_, std::move(child)).first;
  for (const int32_t page : made->second.pages) {
    if (page != kEvicted) ++num_holders_[static_cast<size_t>(page)];
  }
  return next_id_++;
}

void Pages::release(std::span<const int64_t> ids) {
  for (const Sequence* sequence : each_once(ids, "pages_release")) {
    for (const int32_t page : sequence->pages) give_back(page);
  }
  for (const int64_t id : ids) sequences_.erase(id);
}

std::vector<PageCopy> Pages::reserve(std::span<const int64_t> ids, std::span<const int64_t> lengths) {
  const std::vector<Sequence*> sequences = each_once(ids, "pages_reserve");
  std::vector<Sequence*> copied;  // whose last page gets a successor
  copied.reserve(ids.size());
  int64_t num_needed = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    Sequence& sequence = *sequences[i];
    if (lengths[i] < sequence.length || lengths[i] > kLargest) {
      invalid(message("pages_reserve: lengths[", i, "] is ", lengths[i], ", expected ", sequence.length,
                      ", the length of sequence ", ids[i], ", to ", kLargest));
    }
    num_needed += pages_of(lengths[i]) - std::ssize(sequence.pages);
  }
  // The last holder of a page keeps it: whoever gets a successor holds it no longer.
  const auto holders_of_tail = [&](const Sequence& sequence) -> int32_t& {
    return num_holders_[static_cast<size_t>(sequence.pages.back())];
  };
  for (size_t i = 0; i < ids.size(); ++i) {
    if (lengths[i] == sequences[i]->length || !has_tail(*sequences[i])) continue;
    if (holders_of_tail(*sequences[i]) == 1) continue;
    --holders_of_tail(*sequences[i]);
    copied.push_back(sequences[i]);
  }
  num_needed += std::ssize(copied);
  std::vector<PageCopy> copies;
  try {
    if (num_needed > num_free()) {
      throw Error(ErrorCode::out_of_memory, message("pages_reserve: ", num_needed, " more pages are needed, and ",
                                                    num_free(), " of ", num_pages_, " are free"));
    }
    copies.reserve(copied.size());
    // Every page that was ever taken has room in both lists, so that a release cannot fail.
    const size_t num_taken = num_holders_.size() + static_cast<size_t>(num_needed);
    make_room(num_holders_, num_taken);
    make_room(free_, num_taken);
    for (size_t i = 0; i < ids.size(); ++i) make_room(sequences[i]->pages, static_cast<size_t>(pages_of(lengths[i])));
  } catch (...) {
    for (const Sequence* sequence : copied) ++holders_of_tail(*sequence);
    throw;
  }
  for (Sequence* sequence : copied) {
    const int32_t source = std::exchange(sequence->pages.back(), take());
    copies.push_back({source, sequence->pages.back()});
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    Sequence& sequence = *sequences[i];
    while (std::ssize(sequence.pages) < pages_of(lengths[i])) sequence.pages.push_back(take());
    sequence.length = lengths[i];
  }
  return copies;
}

void Pages::truncate(std::span<const int64_t> ids, std::span<const int64_t> lengths) {
  const std::vector<Sequence*> sequences = each_once(ids, "pages_truncate");
  for (size_t i = 0; i < ids.size(); ++i) {
    const Sequence& sequence = *sequences[i];
    if (lengths[i] >= sequence.evicted_end && lengths[i] <= sequence.length) continue;
    invalid(message("pages_truncate: lengths[", i, "] is ", lengths[i], ", expected ", sequence.evicted_end,
                    sequence.evicted_end > 0 ? ", the end of the evicted pages, to " : " to ", sequence.length,
                    ", the length of sequence ", ids[i]));
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    Sequence& sequence = *sequences[i];
    for (; std::ssize(sequence.pages) > pages_of(lengths[i]); sequence.pages.pop_back()) {
      give_back(sequence.pages.back());
    }
    sequence.length = lengths[i];
  }
}

void Pages::evict(std::span<const int64_t> ids, std::span<const int64_t> before, int64_t keep_first) {
  if (keep_first < 0) invalid(message("pages_evict: keep_first is ", keep_first, ", expected at least 0"));
  const std::vector<Sequence*> sequences = each_once(ids, "pages_evict");
  for (size_t i = 0; i < ids.size(); ++i) {
    if (before[i] <= sequences[i]->length) continue;
    invalid(message("pages_evict: before[", i, "] is ", before[i], ", expected at most ", sequences[i]->length,
                    ", the length of sequence ", ids[i]));
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    Sequence& sequence = *sequences[i];
    // before may be negative: there are fewer rows than a window has.
    for (int64_t page = pages_of(keep_first); page < before[i] / page_size_; ++page) {
      give_back(std::exchange(sequence.pages[static_cast<size_t>(page)], kEvicted));
      sequence.evicted_end = std::max(sequence.evicted_end, (page + 1) * page_size_);
    }
  }
}

void Pages::lengths(std::span<const int64_t> ids, int64_t* lengths) const {
  for (size_t i = 0; i < ids.size(); ++i) sequence_at(sequences_, ids, i, "pages_lengths");
  for (const int64_t id : ids) *lengths++ = sequences_.at(id).length;
}

void Pages::table(std::span<const int64_t> ids, int32_t* table, int64_t num_columns, int64_t row_stride) const {
  std::vector<const Sequence*> sequences;
  sequences.reserve(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    sequences.push_back(&sequence_at(sequences_, ids, i, "pages_table"));
    if (std::ssize(sequences.back()->pages) > num_columns) {
      invalid(message("pages_table: num_columns is ", num_columns, ", expected at least ",
                      sequences.back()->pages.size(), ", the pages of sequence ", ids[i]));
    }
  }
  for (const Sequence* sequence : sequences) {
    int32_t* end = std::copy(sequence->pages.begin(), sequence->pages.end(), table);
    std::fill(end, table + num_columns, -1);
    table += row_stride;
  }
}

}  // namespace tessella::core
