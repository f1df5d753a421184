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

// Calls fn(task, worker) for task in [0, tasks), each once; worker < num_threads, and no two running calls have the
// same one. An exception of fn reaches the caller and stops further tasks. Once the flag `cancel` is set, no task
// starts and core::Cancelled is thrown; null = no flag.
template <typename Fn>
void for_each(int64_t tasks, int num_threads, const int32_t* cancel, Fn&& fn) {
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  std::exception_ptr error;
  const auto work = [&](int worker) {
    try {
      for (int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) {
        core::end_if_cancelled(cancel);
        fn(task, worker);
      }
    } catch (...) {
      next.store(tasks, std::memory_order_relaxed);
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;  // join at the end of this block
    const int helpers = static_cast<int>(std::min<int64_t>(num_threads, tasks)) - 1;
    try {
      for (int worker = 1; worker <= helpers; ++worker) threads.emplace_back(work, worker);
    } catch (const std::system_error&) {
      // No more threads to be had: those that started, and this one, do all tasks.
    }
    work(0);
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace tessella::reference
