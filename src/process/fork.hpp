// A lock that a fork waits for.
#pragma once

#include <pthread.h>

#include <memory>
#include <mutex>

namespace tessella::process {
namespace detail {

// Never destroyed: calls may outlive static destruction.
union Forever {
  Forever() : mutex() {}
  ~Forever() {}
  std::recursive_mutex mutex;
};
inline Forever fork_mutex;

// A recursive mutex stores its owner's thread number, which differs in the child, so the child constructs it again.
[[maybe_unused]] inline const int kForkWaits = pthread_atfork(
    [] { fork_mutex.mutex.lock(); }, [] { fork_mutex.mutex.unlock(); }, [] { std::construct_at(&fork_mutex.mutex); });

}  // namespace detail

// Held over what a forked child could not go on from: it has the locks of the parent's threads and none of the threads.
// In the child it is free.
inline std::recursive_mutex& fork_mutex() { return detail::fork_mutex.mutex; }

}  // namespace tessella::process
