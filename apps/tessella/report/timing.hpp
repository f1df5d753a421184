// How long something takes, and how sure that is.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace tessella::cli {

struct Timing {
  int64_t runs = 0;
  double median = 0;  // seconds
  double min = 0;
  double max = 0;
  double spread = 0;  // distance of the quartiles over the median
};

// Of several measurements of seconds a run, each of so many runs.
Timing summarize(std::vector<double> seconds, int64_t runs_each);

// Runs until `budget` seconds or `most` runs are over, at least once.
Timing measure(const std::function<void()>& run, double budget, int most = 200);

double seconds_of(const std::function<void()>& run);

}  // namespace tessella::cli
