// Threads of the CPU backend: one fork-join call over oneTBB, the only file that knows about threads.
#pragma once

#include <cstdint>

namespace tessella::cpu {

// Threads a call may use: min(affinity, cgroup quota, TESSELLA_NUM_THREADS); inside a oneTBB task, the caller's arena.
int max_threads();

// Calls fn(item, worker) for item in [0, items), each item once, in increasing order of start; worker is in
// [0, num_threads) and no two running calls share it. Exceptions of fn reach the caller.
void parallel_for(int64_t items, int num_threads, void (*fn)(void* context, int64_t item, int worker), void* context);

template <typename Fn>
void parallel_for(int64_t items, int num_threads, Fn&& fn) {
  parallel_for(
      items, num_threads,
      [](void* context, int64_t item, int worker) { (*static_cast<Fn*>(context))(item, worker); },
      static_cast<void*>(&fn));
}

}  // namespace tessella::cpu
