// The same bits whatever the threads, runs and neighbours: thread counts, repeated and concurrent calls, one plan for
// many threads, a forked child.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "cases/call.hpp"
#include "cases/cases.hpp"
#include "cases/kernels.hpp"

namespace tessella::tests {
namespace {

class Sharing : public EachKernel {
 protected:
  Case base() const {
    return {.kernel = GetParam().name,
            .dtype = GetParam().computes("bf16") ? "bf16" : "f32",
            .batch = 2,
            .heads_q = 6,
            .heads_kv = 3,
            .seqlen_q = 130,
            .seqlen_kv = 170,
            .head_dim_qk = 32,
            .head_dim_v = 32,
            .window_right = 0,
            .batch_invariant = GetParam().is_for_few(),
            .few = GetParam().is_for_few(),
            .seed = 5};
  }
  // Results of a fresh run.
  std::vector<std::byte> results(const Case& c) {
    Call call(c);
    EXPECT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();
    return call.results();
  }
};

TEST_P(Sharing, BitsDoNotDependOnThreads) {
  for (const bool plan : {false, true}) {
    Case c = base();
    c.plan = plan;
    const std::vector<std::byte> one = results(c);
    for (const int64_t threads : {2, 3, 8, 0}) {
      c.threads = threads;
      EXPECT_EQ(results(c), one) << threads << " threads";
    }
  }
}

TEST_P(Sharing, BitsDoNotDependOnTheRun) {
  Case c = base();
  c.threads = 3;
  c.dropout = 0.2;
  const std::vector<std::byte> first = results(c);
  for (int run = 0; run < 5; ++run) EXPECT_EQ(results(c), first);
}

TEST_P(Sharing, OnePlanServesManyThreads) {
  Case c = base();
  c.threads = 2;
  Call first(c);
  tessella_plan* plan = nullptr;
  ASSERT_EQ(first.make_plan(&plan), TESSELLA_OK) << tessella_last_error();
  ASSERT_EQ(first.run(), TESSELLA_OK);
  const std::vector<std::byte> expected = first.results();

  constexpr int kThreads = 6;
  std::vector<std::string> wrong(kThreads);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      Call own(c);
      for (int run = 0; run < 5; ++run) {
        own.poison_outputs();
        std::string& message = wrong[static_cast<size_t>(thread)];
        const bool through_plan = (thread + run) % 2 == 0;
        const tessella_status status = through_plan ? own.run_plan(plan, message) : own.run_plain();
        if (status != TESSELLA_OK) message = tessella_last_error();
        if (own.results() != expected) message += " results differ";
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& message : wrong) EXPECT_EQ(message, "");
  tessella_plan_free(plan);
}

void expect_child_to_agree(Call& call, const std::vector<std::byte>& expected) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(60);  // a child that waits for threads or locks it has not must not hang the suite
    call.poison_outputs();
    const bool same = call.run_plain() == TESSELLA_OK && call.results() == expected;
    _exit(same ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
}

// Why no child of a process with threads can run this kernel; nullptr if it can.
const char* no_child(const KernelInfo& kernel) {
  if (kernel.is_on_gpu()) return "CUDA does not work in a forked child";
#ifdef __SANITIZE_ADDRESS__
  // A thread of the pool may still be starting, and allocating, when the call for which it starts has ended.
  return "AddressSanitizer's own locks do not survive a fork beside threads that allocate";
#else
  return nullptr;
#endif
}

TEST_P(Sharing, WorksInAForkedChild) {
  if (const char* reason = no_child(GetParam())) GTEST_SKIP() << reason;
  Case c = base();
  c.threads = 3;
  Call call(c);
  ASSERT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();  // the parent's threads are up
  const std::vector<std::byte> expected = call.results();
  expect_child_to_agree(call, expected);
}

TEST_P(Sharing, AChildForkedWhileOthersCall) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer does not follow a fork of many threads";
#endif
  if (const char* reason = no_child(GetParam())) GTEST_SKIP() << reason;
  const Case c = base();
  Call call(c);
  ASSERT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();
  const std::vector<std::byte> expected = call.results();
  std::atomic<bool> stop{false};
  {
    std::vector<std::jthread> callers;
    for (int i = 0; i < 2; ++i) {
      callers.emplace_back([&c, &stop] {
        Call other(c);
        while (!stop) other.run_plain();
      });
    }
    for (int i = 0; i < 20; ++i) expect_child_to_agree(call, expected);
    stop = true;
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, Sharing, testing::ValuesIn(kernels_of("forward")), kernel_test_name);

}  // namespace
}  // namespace tessella::tests
