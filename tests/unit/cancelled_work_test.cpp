// A call's flag ends the handing out of work: no task begins once it is set, and the call knows it.
#include <gtest/gtest.h>

#include <atomic>

#include "core/cancel.hpp"
#include "cpu/parallel.hpp"
#include "reference/threads.hpp"

namespace tessella {
namespace {

// A task sets the flag.
template <typename ForEach>
void expect_to_end(const ForEach& for_each) {
  for (const int threads : {1, 4}) {
    int32_t flag = 0;
    std::atomic<int64_t> done{0};
    const auto task = [&](int64_t idx, int) {
      if (idx == 10) __atomic_store_n(&flag, 1, __ATOMIC_RELAXED);
      ++done;
    };
    EXPECT_THROW(for_each(int64_t{100000}, threads, &flag, task), core::Cancelled);
    EXPECT_GE(done, 1);
    EXPECT_LT(done, 100000);
    if (threads == 1) {
      EXPECT_EQ(done, 11);
    }
    done = 0;
    flag = 0;
    for_each(int64_t{9}, threads, &flag, task);
    EXPECT_EQ(done, 9);
  }
}

TEST(CancelledWork, EndsOnTheCpu) {
  expect_to_end([](int64_t tasks, int threads, const int32_t* flag, const auto& task) {
    cpu::parallel_for(tasks, threads, flag, task);
  });
}
TEST(CancelledWork, EndsInTheReference) {
  expect_to_end([](int64_t tasks, int threads, const int32_t* flag, const auto& task) {
    reference::for_each(tasks, threads, flag, task);
  });
}

}  // namespace
}  // namespace tessella
