// A value that the process makes when it first needs it, and keeps to its end.
#pragma once

#include <atomic>
#include <mutex>
#include <type_traits>
#include <utility>

#include "process/fork.hpp"

namespace tessella::process {

// The value of make(), a lambda of its own type: made by one thread, never destroyed, since calls may outlive static
// destruction. A fork waits meanwhile: of a local static a child would wait for good for a thread that it does not
// have.
template <typename Make>
const std::invoke_result_t<Make>& once(Make&& make) {
  static_assert(std::is_class_v<std::remove_cvref_t<Make>>, "of functions those of one type would share a value");
  using Value = std::invoke_result_t<Make>;
  static constinit std::atomic<const Value*> made{nullptr};
  if (const Value* value = made.load(std::memory_order_acquire)) return *value;
  const std::lock_guard lock(fork_mutex());
  if (made.load(std::memory_order_relaxed) == nullptr) {
    made.store(new Value(std::forward<Make>(make)()), std::memory_order_release);
  }
  return *made.load(std::memory_order_relaxed);
}

}  // namespace tessella::process
