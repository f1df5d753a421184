// Calls in a process that has an OpenMP runtime, as torch's has: CPU kernels run on its threads.
#include <gtest/gtest.h>
#include <omp.h>
#include <sys/wait.h>
#include <unistd.h>
#include <tessella/attention.hpp>
#include <tessella/plan.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace tessella::tests {
namespace {

constexpr int64_t kSeqlen = 300, kHeads = 4, kDim = 32;

// Of a size that wants more threads than one.
struct Problem {
  std::vector<float> q, out;
  Problem() : q(static_cast<size_t>(kSeqlen * kHeads * kDim)), out(q.size()) {
    for (size_t at = 0; at < q.size(); ++at) q[at] = static_cast<float>(at * 7919 % 101) / 50 - 1;
  }
  ForwardArgs args() {
    const auto of = [](auto* data) { return view(data, f32, {1, kSeqlen, kHeads, kDim}); };
    const auto* input = static_cast<const void*>(q.data());
    return {.q = of(input), .k = of(input), .v = of(input), .out = of(out.data())};
  }
  std::vector<float> run(const AttentionOptions& options = {}) {
    out.assign(out.size(), -7);
    forward(args(), options);
    return out;
  }
};

size_t num_threads_of_process() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) ++count;
  return count;
}

// The runtime's own team, so that it is there before the library is asked.
void start_team(int size) {
  omp_set_num_threads(size);
  int met = 0;
#pragma omp parallel reduction(+ : met)
  met += 1;
  ASSERT_EQ(met, size);
}

TEST(OpenMp, IsThePoolAndExplainSaysSo) {
  start_team(2);
  Problem problem;
  const std::string message = plan_forward(problem.args()).explain();
  EXPECT_NE(message.find(" of the process's OpenMP"), std::string::npos) << message;
}

TEST(OpenMp, NoThreadsBesideItsOwn) {
  start_team(2);
  const size_t before = num_threads_of_process();
  Problem problem;
  for (int n = 0; n < 20; ++n) problem.run();
  EXPECT_EQ(num_threads_of_process(), before);
}

TEST(OpenMp, TheSameBitsForAnyTeam) {
  start_team(1);
  Problem problem;
  const std::vector<float> one = problem.run();
  for (int size : {2, 3, 4}) {
    start_team(size);
    EXPECT_EQ(problem.run(), one) << size << " threads";
  }
}

TEST(OpenMp, InsideAParallelRegionACallHasItsOwnThread) {
  start_team(3);
  const std::vector<float> expected = Problem().run();
  std::vector<std::vector<float>> got(3);
#pragma omp parallel num_threads(3)
  {
    Problem problem;
    got[static_cast<size_t>(omp_get_thread_num())] = problem.run();
  }
  for (const std::vector<float>& out : got) EXPECT_EQ(out, expected);
}

// The child has none of the team's threads.
TEST(OpenMp, WorksInAForkedChild) {
  start_team(2);
  Problem problem;
  const std::vector<float> expected = problem.run();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(60);
    _exit(problem.run() == expected ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// Whoever else has used the team: torch, before it forks.
TEST(OpenMp, WorksInAChildForkedBeforeAnyCall) {
  start_team(2);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(60);
    Problem problem;
    _exit(problem.run({.num_threads = 2}) == problem.run({.num_threads = 1}) ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace tessella::tests
