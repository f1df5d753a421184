// Fan-out over std::thread for the reference and the ladder, which must not depend on a backend.
// Threads live for one call, so that a forked child needs nothing from its parent.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "core/cancel.hpp"

namespace tessella::reference {

// fn(item, worker) for item in [0, items), each once; worker < num_threads, never shared by two running calls.
// What fn throws reaches the caller, and no item begins any more. Once the flag `cancel` is set, neither does one, and
// core::Cancelled is thrown; null = no flag.
template <typename Fn>
void for_each(int64_t items, int num_threads, const int32_t* cancel, Fn&& fn) {
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  std::exception_ptr error;
  const auto work = [&](int worker) {
    try {
      for (int64_t item; (item = next.fetch_add(1, std::memory_order_relaxed)) < items;) {
        core::end_if_cancelled(cancel);
        fn(item, worker);
      }
    } catch (...) {
      next.store(items, std::memory_order_relaxed);
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;  // join at the end of this block
    const int helpers = static_cast<int>(std::min<int64_t>(num_threads, items)) - 1;
    try {
      for (int worker = 1; worker <= helpers; ++worker) threads.emplace_back(work, worker);
    } catch (const std::system_error&) {
      // No more threads to be had: those that started, and this one, do all items.
    }
    work(0);
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace tessella::reference
