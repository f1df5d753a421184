#include "report/timing.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace tessella::cli {

double seconds_of(const std::function<void()>& run) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  run();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

Timing summarize(std::vector<double> seconds, int64_t runs_each) {
  std::ranges::sort(seconds);
  const size_t size = seconds.size();
  const double median = (seconds[(size - 1) / 2] + seconds[size / 2]) / 2;
  return {static_cast<int64_t>(size) * runs_each, median, seconds.front(), seconds.back(),
          median > 0 ? (seconds[size * 3 / 4] - seconds[size / 4]) / median : 0};
}

Timing measure(const std::function<void()>& run, double budget, int most) {
  std::vector<double> times;
  double total = 0;
  do {
    times.push_back(seconds_of(run));
    total += times.back();
  } while (total < budget && static_cast<int>(times.size()) < most);
  return summarize(std::move(times), 1);
}

}  // namespace tessella::cli
