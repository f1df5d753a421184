// Where a command runs: --device cpu, or cuda[:N].
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>

#include "options/call.hpp"
#include "report/timing.hpp"

namespace tessella::cli {

struct Placement {
  std::optional<int32_t> gpu;                                // its number; none: the CPU
  const char* kind() const { return gpu ? "cuda" : "cpu"; }  // as kernels say it of themselves
};

// InputError for anything but cpu, cuda and cuda:N.
Placement parse_placement(const std::string& string);

// A copy of the tensor in a GPU's memory, queued on its default stream.
tessella_tensor copied_to_gpu(const Gpu& gpu, const tessella_tensor& tensor, std::deque<GpuMemory>& memories);

// Copies the call's tensors to the GPU and points its arguments at them.
void place(const Placement& placement, Call& call);
// Brings a result, where it now is, back to the host memory it was placed from.
void fetch(const Placement& placement, const tessella_tensor& from, const Array& to);

// As measure(), on a GPU by its own clock: in windows of many runs, so that queueing a run costs nothing.
Timing measure_at(const Placement& placement, const std::function<void()>& run, double budget);
double seconds_at(const Placement& placement, const std::function<void()>& run);

}  // namespace tessella::cli
