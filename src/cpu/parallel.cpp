// One fork-join call: workers take tasks from a shared counter until none is left. All of them flush subnormals and
// round to nearest meanwhile, whatever mode the caller or a thread of the pool is in.
//
// Workers are oneTBB tasks in the caller's arena inside a oneTBB task; else threads of the process's OpenMP runtime,
// where one is loaded (openmp.hpp); else oneTBB tasks in an arena of our own. A forked child has no workers of a pool
// and perhaps locks that nobody will release, so if the parent had a pool the child uses std::thread; so does a build
// with TESSELLA_STD_THREADS, because ThreadSanitizer cannot see into oneTBB.
#include "cpu/parallel.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "core/cancel.hpp"
#include "cpu/openmp.hpp"
#include "process/float_mode.hpp"
#include "process/once.hpp"
#include "process/thread_limit.hpp"

#ifndef TESSELLA_STD_THREADS
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/partitioner.h>
#include <oneapi/tbb/task_arena.h>
#include <pthread.h>
#endif

namespace tessella::cpu {
namespace {

using core::end_if_cancelled;
using process::thread_limit;

using Function = void (*)(void* context, int64_t task, int worker);

// The work of one call, shared by its workers.
class Job {
 public:
  Job(int64_t tasks, const int32_t* cancel, Function fn, void* context)
      : tasks_(tasks), cancel_(cancel), fn_(fn), context_(context) {}

  // Never throws: an exception stops further tasks, and finish() rethrows it.
  void work(int worker) noexcept {
    const process::FloatMode mode(process::Subnormals::flush);
    try {
      for (int64_t task; (task = next_.fetch_add(1, std::memory_order_relaxed)) < tasks_;) {
        end_if_cancelled(cancel_);
        fn_(context_, task, worker);
      }
    } catch (...) {
      next_.store(tasks_, std::memory_order_relaxed);
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }

  void finish() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  const int64_t tasks_;
  const int32_t* const cancel_;
  const Function fn_;
  void* const context_;
  std::atomic<int64_t> next_{0};
  std::mutex mutex_;
  std::exception_ptr error_;
};

void run_on_std_threads(Job& job, int num_threads) {
  std::vector<std::jthread> threads;  // join whatever happens
  threads.reserve(static_cast<size_t>(num_threads - 1));
  try {
    for (int worker = 1; worker < num_threads; ++worker) threads.emplace_back([&job, worker] { job.work(worker); });
  } catch (...) {
    // No more threads, or no memory for them: those there are do the work.
  }
  job.work(0);
}

#ifndef TESSELLA_STD_THREADS

namespace tbb = oneapi::tbb;

std::atomic<bool> used_pool{false};  // of oneTBB, or an OpenMP runtime is there, which others use
std::atomic<bool> forked_after_use{false};
[[maybe_unused]] const int kForkIsSeen = pthread_atfork(
    [] {
      if (loaded_openmp() != nullptr) used_pool.store(true, std::memory_order_relaxed);
    },
    nullptr,
    [] {
      if (used_pool.load(std::memory_order_relaxed)) forked_after_use.store(true, std::memory_order_relaxed);
    });

bool in_arena() {
  // Before its first call, which a fork may cut in two.
  if (!used_pool.load(std::memory_order_relaxed)) used_pool.store(true, std::memory_order_relaxed);
  return tbb::this_task_arena::current_thread_index() != tbb::task_arena::not_initialized;
}

tbb::task_arena& own_arena() {
  return *process::once([] { return new tbb::task_arena(thread_limit(), 1); });
}

// One task a worker, handed to the arena's threads by the static partitioner's mailboxes: 6 us beyond the work itself
// for 16 threads, where tasks stolen one by one from the caller cost 33 us (docs/lab/cpu.md).
void run_as_tasks(Job& job, int num_threads) {
  tbb::parallel_for(
      0, num_threads, 1, [&job](int worker) { job.work(worker); }, tbb::static_partitioner());
}

void run_on_tbb(Job& job, int num_threads) {
  if (in_arena()) {
    // While waiting, the caller must not pick up unrelated tasks of its arena.
    tbb::this_task_arena::isolate([&] { run_as_tasks(job, num_threads); });
    return;
  }
  own_arena().execute([&] { run_as_tasks(job, num_threads); });
}

// Starts the whole team: with a smaller one the runtime would end the other threads and start them again later.
void run_on_openmp(const OpenMp& openmp, Job& job, int num_threads) {
  struct Team {
    const OpenMp& openmp;
    Job& job;
    int num_threads;
  } team{openmp, job, num_threads};
  const int size = openmp.in_parallel() != 0 ? 1 : std::max(num_threads, openmp.max_threads());
  openmp.parallel(
      [](void* data) {
        const Team& own = *static_cast<const Team*>(data);
        const int worker = own.openmp.thread_num();
        if (worker < own.num_threads) own.job.work(worker);
      },
      &team, static_cast<unsigned>(size), 0);
}

#endif

enum class Pool { arena, openmp, own, none };

// The pool for a call made in this thread.
Pool pool() {
#ifdef TESSELLA_STD_THREADS
  return Pool::none;
#else
  if (forked_after_use.load(std::memory_order_relaxed)) return Pool::none;
  if (in_arena()) return Pool::arena;
  return loaded_openmp() != nullptr ? Pool::openmp : Pool::own;
#endif
}

}  // namespace

int max_threads() {
#ifndef TESSELLA_STD_THREADS
  switch (pool()) {
    case Pool::arena: return std::clamp(tbb::this_task_arena::max_concurrency(), 1, thread_limit());
    case Pool::openmp: {
      const OpenMp& openmp = *loaded_openmp();
      return openmp.in_parallel() != 0 ? 1 : std::clamp(openmp.max_threads(), 1, thread_limit());
    }
    case Pool::own:
    case Pool::none: break;
  }
#endif
  return thread_limit();
}

std::string threads_string(int num_threads) {
  return std::to_string(num_threads) + (num_threads == 1 ? " thread" : " threads") +
         (pool() == Pool::openmp ? " of the process's OpenMP" : "");
}

int threads_for(int requested) { return requested <= 0 ? max_threads() : std::min(requested, max_threads()); }

void parallel_for(int64_t tasks, int num_threads, const int32_t* cancel, Function fn, void* context) {
  const int threads = static_cast<int>(std::min<int64_t>(tasks, std::min(num_threads, thread_limit())));
  if (threads <= 1) {
    const process::FloatMode mode(process::Subnormals::flush);
    for (int64_t task = 0; task < tasks; ++task) {
      end_if_cancelled(cancel);
      fn(context, task, 0);
    }
    return;
  }
  Job job(tasks, cancel, fn, context);
#ifdef TESSELLA_STD_THREADS
  run_on_std_threads(job, threads);
#else
  switch (pool()) {
    case Pool::arena:
    case Pool::own: run_on_tbb(job, threads); break;
    case Pool::openmp: run_on_openmp(*loaded_openmp(), job, threads); break;
    case Pool::none: run_on_std_threads(job, threads); break;
  }
#endif
  job.finish();
}

}  // namespace tessella::cpu
