// How long something takes, and how sure that is.
#pragma once

#include <functional>

namespace tessella::cli {

struct Timing {
  int runs = 0;
  double median = 0;  // seconds
  double min = 0;
  double max = 0;
  double spread = 0;  // distance of the quartiles over the median
};

// Runs until `budget` seconds or `most` runs are over, at least once.
Timing measure(const std::function<void()>& run, double budget, int most = 200);

double seconds_of(const std::function<void()>& run);

}  // namespace tessella::cli
