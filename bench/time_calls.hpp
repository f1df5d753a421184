// What a call costs its host: windows of calls on the steady clock.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

// Prints the median over windows of nanoseconds a call of fn, the best window, and beside them the limit that the
// median should keep, if there is one. before(): ahead of each window, not timed.
template <typename Before, typename Fn>
void time_calls(const char* what, int num_windows, int num_calls, Before&& before, Fn&& fn, double limit_ns = 0) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> ns;
  for (int window = -1; window < num_windows; ++window) {  // the first warms up
    before();
    const auto start = Clock::now();
    for (int i = 0; i < num_calls; ++i) fn();
    if (window >= 0) ns.push_back(std::chrono::duration<double, std::nano>(Clock::now() - start).count() / num_calls);
  }
  std::sort(ns.begin(), ns.end());
  std::printf("%-28s %9.0f ns a call (best %.0f)", what, ns[ns.size() / 2], ns[0]);
  if (limit_ns > 0) std::printf(", limit %.0f", limit_ns);
  std::printf("\n");
}
