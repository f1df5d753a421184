// The mode that work runs in, on the caller's thread and on others, and the caller's behind it.
#include "process/float_mode.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>

#include "cases/float_mode.hpp"
#include "cpu/parallel.hpp"

namespace tessella::tests {
namespace {

volatile float g_small = 0x1p-126f;  // no arithmetic at compile time
volatile double g_three = 3, g_ten = 10;

#if defined(__x86_64__) || defined(__aarch64__)
constexpr bool kCanFlush = true;
#else
constexpr bool kCanFlush = false;
#endif
bool flushes() { return g_small * 0.5f == 0; }
// The first is rounded down, the second up. (What fegetround() says is the mode of x87 instructions.)
bool rounds_to_nearest() { return 1 / g_three == 0x1.5555555555555p-2 && 1 / g_ten == 0x1.999999999999ap-4; }

TEST(FloatMode, IsThatOfTheScope) {
  for (const CallersMode& mode : callers_modes()) {
    SCOPED_TRACE(mode.name);
    EXPECT_TRUE(keeps_mode(mode, [] {
      {
        const process::FloatMode keeps(process::Subnormals::keep);
        EXPECT_FALSE(flushes());
        EXPECT_TRUE(rounds_to_nearest());
        {
          const process::FloatMode flushing(process::Subnormals::flush);
          EXPECT_EQ(flushes(), kCanFlush);
          EXPECT_TRUE(rounds_to_nearest());
        }
        EXPECT_FALSE(flushes());
      }
    }));
  }
}

TEST(FloatMode, IsTheSameOnEveryThread) {
  for (const CallersMode& mode : callers_modes()) {
    for (const int threads : {1, 2, 4}) {
      SCOPED_TRACE(mode.name);
      std::atomic<int> wrong{0};
      EXPECT_TRUE(keeps_mode(mode, [&] {
        cpu::parallel_for(64, threads, nullptr, [&](int64_t, int) {
          if (flushes() != kCanFlush || !rounds_to_nearest()) ++wrong;
        });
      }));
      EXPECT_EQ(wrong, 0) << threads << " threads";
    }
  }
}

TEST(FloatMode, IsBackBehindAnException) {
  for (const CallersMode& mode : callers_modes()) {
    for (const int threads : {1, 2}) {
      EXPECT_TRUE(keeps_mode(mode, [&] {
        const auto fails = [](int64_t, int) { throw std::runtime_error("work fails"); };
        EXPECT_THROW(cpu::parallel_for(8, threads, nullptr, fails), std::runtime_error);
      }));
    }
  }
}

}  // namespace
}  // namespace tessella::tests
