#include "device/rotation.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "device/gpu.hpp"

namespace tessella::cli {
namespace {

constexpr double kRotatedBytes = 4e8;  // several times the largest cache of a GPU, and of most CPUs
constexpr int64_t kFewestCalls = 8;    // of a graph: what its launch costs is not one call's
constexpr double kWindowSeconds = 0.05;
constexpr int kFewestWindows = 5;

// Of windows of so many calls each.
Timing summarize_calls(std::vector<double> seconds, int64_t calls) {
  for (double& value : seconds) value /= static_cast<double>(calls);
  return summarize(std::move(seconds), calls);
}

Timing measure_graph(const Gpu& gpu, int64_t num_copies, const RotatingRun& run, double budget) {
  const GpuStream stream(gpu);
  const int64_t calls = std::max(num_copies, kFewestCalls);
  const GpuGraph graph(gpu, stream.handle(), [&] {
    for (int64_t i = 0; i < calls; ++i) run(i % num_copies, stream.handle());
  });
  const auto window = [&](int64_t launches) {
    const GpuEvent first(gpu), second(gpu);
    gpu.record(first.handle(), stream.handle());
    for (int64_t i = 0; i < launches; ++i) graph.launch(stream.handle());
    gpu.record(second.handle(), stream.handle());
    return gpu.seconds_between(first.handle(), second.handle());
  };
  window(1);  // warm
  const auto launches = static_cast<int64_t>(std::ceil(kWindowSeconds / std::max(window(1), 1e-7)));
  std::vector<double> times;
  while (static_cast<double>(times.size()) < std::max<double>(kFewestWindows, budget / kWindowSeconds)) {
    times.push_back(window(launches));
  }
  return summarize_calls(std::move(times), calls * launches);
}

}  // namespace

double bytes_to_rotate(const Placement& placement) {
#ifdef _SC_LEVEL3_CACHE_SIZE
  if (!placement.gpu) return std::max(kRotatedBytes, 2 * static_cast<double>(::sysconf(_SC_LEVEL3_CACHE_SIZE)));
#endif
  return kRotatedBytes;
}

Timing measure_rotation(const Placement& placement, int64_t num_copies, const RotatingRun& run, double budget) {
  if (placement.gpu) return measure_graph(Gpu::open(*placement.gpu), num_copies, run, budget);
  std::vector<double> times;
  double total = 0;
  do {
    times.push_back(seconds_of([&] {
      for (int64_t i = 0; i < num_copies; ++i) run(i, nullptr);
    }));
    total += times.back();
  } while (total < budget);
  return summarize_calls(std::move(times), num_copies);
}

}  // namespace tessella::cli
