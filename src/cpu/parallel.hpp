// Threads of the CPU backend: one fork-join call over oneTBB or the process's OpenMP, no other file starts
// threads.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

namespace tessella::cpu {

// Threads a call may use: min(affinity, cgroup quota, TESSELLA_NUM_THREADS); inside a oneTBB task at most its arena's,
// beside an OpenMP runtime at most its own (omp_set_num_threads, torch.set_num_threads), inside a parallel region one.
int max_threads();

// Threads a call uses when its caller asks for `requested`; 0 asks for all.
int threads_for(int requested);

// "2 threads", and whose they are where they are not ours: for explain().
std::string threads_string(int num_threads);

// Calls fn(task, worker) for task in [0, tasks), each task once, in increasing order of start. worker is in [0,
// num_threads), and no two running calls have the same one. Exceptions of fn reach the caller. If `cancel` is not null,
// the flag is read before each task: once it is set, no task starts and core::Cancelled is thrown.
void parallel_for(int64_t tasks, int num_threads, const int32_t* cancel,
                  void (*fn)(void* context, int64_t task, int worker), void* context);

template <typename Fn>
void parallel_for(int64_t tasks, int num_threads, const int32_t* cancel, Fn&& fn) {
  using Function = std::remove_reference_t<Fn>;
  parallel_for(
      tasks, num_threads, cancel,
      [](void* context, int64_t task, int worker) { (*static_cast<Function*>(context))(task, worker); },
      const_cast<void*>(static_cast<const void*>(&fn)));
}

}  // namespace tessella::cpu
