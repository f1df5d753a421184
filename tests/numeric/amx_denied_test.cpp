// Linux does not grant AMX to a process with a signal stack too small for its tiles. Then the next kernel must be
// chosen, with AMX's reason in the plan, and nothing may crash. Children try it, because permission, once given, stays.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <string>

#include "cases/call.hpp"
#include "cases/cases.hpp"
#include "cases/tagged.hpp"

namespace tessella::tests {
namespace {

enum Result { kAmxRan = 10, kOtherRan, kOtherRanForTheReason, kFailed };

// In a child that has not used the library yet. What ended it by a signal is 1000 + the signal.
int in_child(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

int choose_and_run() {
  Call call({.dtype = "bf16",
             .heads_q = 2,
             .heads_kv = 2,
             .seqlen_q = 200,
             .seqlen_kv = 200,
             .head_dim_qk = 64,
             .head_dim_v = 64,
             .window_right = 0,
             .threads = 2,
             .seed = 1});
  tessella_plan* plan = nullptr;
  if (tessella_plan_make(Tagged(call.args(), call.options()), &plan) != TESSELLA_OK) return kFailed;
  const bool amx = std::strcmp(tessella_plan_kernel(plan), "cpu.forward_amx") == 0;
  const bool says_why = std::strstr(tessella_plan_explain(plan), "arch_prctl") != nullptr;
  tessella_plan_free(plan);
  if (call.run_plain() != TESSELLA_OK || !call.check().empty()) return kFailed;
  return amx ? kAmxRan : says_why ? kOtherRanForTheReason : kOtherRan;
}

TEST(AmxDenied, TheNextKernelRunsAndThePlanSaysWhy) {
  const int freely = in_child(choose_and_run);
  if (freely == kOtherRan || freely == kOtherRanForTheReason) GTEST_SKIP() << "no AMX on this machine";
  ASSERT_EQ(freely, kAmxRan);

  const int denied = in_child([] {
    // The smallest stack that Linux takes from a process without AMX has no room for 8 KiB of tiles.
    static char memory[1 << 16];
    for (size_t bytes = 2048; bytes < sizeof memory; bytes += 256) {
      const stack_t stack{.ss_sp = memory, .ss_flags = 0, .ss_size = bytes};
      if (sigaltstack(&stack, nullptr) == 0) return choose_and_run();
    }
    return int{kFailed};
  });
  EXPECT_EQ(denied, kOtherRanForTheReason);
}

}  // namespace
}  // namespace tessella::tests
