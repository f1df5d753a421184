// A test in a child process, for a process opens the driver once.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "cuda/compile/nvrtc.hpp"

namespace tessella::tests {

// Thrown in a child: its test is skipped for this reason.
struct Skip {
  std::string reason;
};

inline void skip_without_nvrtc() {
  if (cuda::nvrtc() == nullptr) throw Skip{cuda::nvrtc_problem()};
}

using Variables = std::vector<std::pair<std::string, std::string>>;

// Runs fn with these variables set, in a child whose failed expectations fail the test, and whose Skip skips it.
template <typename Fn>
void in_child(const Variables& variables, Fn&& fn) {
  constexpr int kSkipped = 77;
  int reason[2];  // of a Skip, from the child
  ASSERT_EQ(::pipe(reason), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
    bool is_skipped = false;
    try {
      fn();
    } catch (const Skip& skip) {
      is_skipped = ::write(reason[1], skip.reason.data(), skip.reason.size()) >= 0;
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    ::_exit(testing::Test::HasFailure() ? 1 : is_skipped ? kSkipped : 0);
  }
  ::close(reason[1]);
  std::string why;
  char buffer[512];
  for (ssize_t count; (count = ::read(reason[0], buffer, sizeof buffer)) > 0;) why.append(buffer, buffer + count);
  ::close(reason[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kSkipped) GTEST_SKIP() << why;
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
}

}  // namespace tessella::tests
