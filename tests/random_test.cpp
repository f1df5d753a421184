// Small random cases on every kernel that runs here, or one case from its line:
//
//   random_test --cases 20000 --seed 1 [--kernel NAME]
//   random_test --case "kernel=reference.flash_2 seqlen_q=5 window_right=0"
//
// Every failing case is printed as its line. Exit status 0 when all passed, 1 when one failed, 2 on bad input.

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "call.hpp"
#include "cases.hpp"

namespace {

using tessella::tests::Case;
using tessella::tests::Outcome;
using tessella::tests::Verdict;

struct Kernel {
  std::string name;
  std::string dtypes;
};

std::vector<Kernel> kernels(const std::string& only) {
  std::vector<Kernel> list;
  for (int32_t idx = 0; idx < tessella_kernel_count(); ++idx) {
    tessella_kernel_info info = TESSELLA_KERNEL_INFO_INIT;
    if (tessella_kernel_describe(idx, &info) != TESSELLA_OK) continue;
    if (!only.empty() && only != info.name) continue;
    if (info.unavailable[0] != '\0') {
      std::printf("skipped %s: %s\n", info.name, info.unavailable);
      continue;
    }
    list.push_back({info.name, info.dtypes});
  }
  return list;
}

// A fault ends the program: the case at hand must not be lost with it.
char g_line[4096];
void on_fault(int signal) {
  const auto print = [](const char* text) { return write(STDOUT_FILENO, text, std::strlen(text)); };
  const bool printed = print("FAULT --case \"") >= 0 && print(g_line) >= 0 && print("\"\n") >= 0;
  _exit(printed ? 128 + signal : 127);
}

Outcome run(const Case& c) {
  std::snprintf(g_line, sizeof g_line, "%s", to_string(c).c_str());
  const Outcome outcome = run_case(c);
  if (outcome.verdict == Verdict::failed) {
    std::printf("FAILED --case \"%s\"\n  %s\n", g_line, outcome.text.c_str());
    std::fflush(stdout);
  }
  return outcome;
}

int run_random(int64_t cases, uint64_t seed, const std::string& only) {
  const std::vector<Kernel> list = kernels(only);
  if (list.empty()) {
    std::fprintf(stderr, "random_test: no kernel to run\n");
    return 2;
  }
  int64_t passed = 0, failed = 0, refused = 0;
  for (int64_t at = 0; at < cases; ++at) {
    const Kernel& kernel = list[static_cast<size_t>(at) % list.size()];
    const uint64_t case_seed = seed * 1'000'000'007 + static_cast<uint64_t>(at);
    switch (run(tessella::tests::random_case(case_seed, kernel.name, kernel.dtypes)).verdict) {
      case Verdict::passed: ++passed; break;
      case Verdict::refused: ++refused; break;
      case Verdict::failed: ++failed; break;
    }
  }
  std::printf("%lld passed, %lld failed, %lld refused by their kernel\n", static_cast<long long>(passed),
              static_cast<long long>(failed), static_cast<long long>(refused));
  return failed == 0 && passed > 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  int64_t cases = 2000;
  uint64_t seed = 1;
  std::string kernel, line;
  for (int arg = 1; arg + 1 < argc; arg += 2) {
    const std::string option = argv[arg];
    if (option == "--cases") {
      cases = std::atoll(argv[arg + 1]);
    } else if (option == "--seed") {
      seed = std::strtoull(argv[arg + 1], nullptr, 10);
    } else if (option == "--kernel") {
      kernel = argv[arg + 1];
    } else if (option == "--case") {
      line = argv[arg + 1];
    } else {
      std::fprintf(stderr, "usage: random_test [--cases N] [--seed S] [--kernel NAME] [--case \"LINE\"]\n");
      return 2;
    }
  }
  for (const int signal_number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) signal(signal_number, on_fault);
  try {
    if (line.empty()) return run_random(cases, seed, kernel);
    const Outcome outcome = run(tessella::tests::parse(line));
    std::printf("%s %s\n",
                outcome.verdict == Verdict::passed    ? "1 passed, 0 failed"
                : outcome.verdict == Verdict::refused ? "refused:"
                                                      : "0 passed, 1 failed",
                outcome.text.c_str());
    return outcome.verdict == Verdict::failed ? 1 : 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "random_test: %s\n", error.what());
    return 2;
  }
}
