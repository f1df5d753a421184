#include "report/timing.hpp"

#include <algorithm>
#include <chrono>
#include <vector>

namespace tessella::cli {

double seconds_of(const std::function<void()>& run) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  run();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

Timing measure(const std::function<void()>& run, double budget, int most) {
  std::vector<double> times;
  double total = 0;
  do {
    times.push_back(seconds_of(run));
    total += times.back();
  } while (total < budget && static_cast<int>(times.size()) < most);
  std::ranges::sort(times);
  const size_t size = times.size();
  const double median = (times[(size - 1) / 2] + times[size / 2]) / 2;
  return {static_cast<int>(size), median, times.front(), times.back(),
          median > 0 ? (times[size * 3 / 4] - times[size / 4]) / median : 0};
}

}  // namespace tessella::cli
