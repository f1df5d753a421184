// Calls that take turns over several copies of their data, so that none finds its own in a cache.
#pragma once

#include <cstdint>
#include <functional>

#include "device/placement.hpp"
#include "report/timing.hpp"

namespace tessella::cli {

// run(i, stream): queues, or on the CPU does, the call over copy i.
using RotatingRun = std::function<void(int64_t copy, void* stream)>;

// Of copies together: more than a processor keeps near itself.
double bytes_to_rotate(const Placement& placement);

// Seconds of one call. On a GPU one graph holds them all, at least eight, so that queueing them costs nothing, and is
// timed by the GPU's clock. Each has run once before.
Timing measure_rotation(const Placement& placement, int64_t num_copies, const RotatingRun& run, double budget);

}  // namespace tessella::cli
