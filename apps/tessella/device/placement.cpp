#include "device/placement.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "device/extent.hpp"
#include "device/gpu.hpp"
#include "files/input_error.hpp"
#include "options/number_string.hpp"
#include "tessella/arguments.hpp"

namespace tessella::cli {
namespace {

constexpr double kWindowSeconds = 0.5;  // at least: clocks settle, and a launch more or less does not show
constexpr int kFewestWindows = 3;

// Seconds a run, of `runs` in a row.
double window(const Gpu& gpu, const std::function<void()>& run, int64_t runs) {
  const GpuEvent first(gpu), second(gpu);
  gpu.record(first.handle(), nullptr);
  for (int64_t i = 0; i < runs; ++i) run();
  gpu.record(second.handle(), nullptr);
  return gpu.seconds_between(first.handle(), second.handle()) / static_cast<double>(runs);
}

}  // namespace

Placement parse_placement(const std::string& string) {
  if (string == "cpu") return {};
  if (string == "cuda") return {0};
  if (string.starts_with("cuda:")) {
    return {static_cast<int32_t>(parse_integer_between("--device", string.substr(5), 0, 1023))};
  }
  throw InputError(fmt::format("--device is '{}', expected cpu, cuda or cuda:N", string));
}

tessella_tensor copied_to_gpu(const Gpu& gpu, const tessella_tensor& tensor, std::deque<GpuMemory>& memories) {
  const size_t bytes = extent_bytes(tensor);
  const GpuMemory& memory = memories.emplace_back(gpu, bytes);
  gpu.copy_to_gpu(memory.data(), tensor.data, bytes, nullptr);
  tessella_tensor copy = tensor;
  copy.data = memory.data();
  copy.device_type = TESSELLA_CUDA;
  copy.device_id = gpu.id();
  return copy;
}

void place(const Placement& placement, Call& call) {
  if (!placement.gpu) return;
  const Gpu& gpu = Gpu::open(*placement.gpu);
  const auto place_one = [&](const tessella_tensor*& tensor) {
    if (tensor == nullptr) return;
    tensor = &call.gpu_tensors.emplace_back(copied_to_gpu(gpu, *tensor, call.gpu_memories));
  };
  for (const detail::TensorField& field : detail::kTensorFields) place_one(call.args.*field.member);
  for (const Call::Gradient member : detail::kGradientFields) {
    if (call.backward) place_one((*call.backward).*member);
  }
  gpu.synchronize(nullptr);
}

void fetch(const Placement& placement, const tessella_tensor& from, const Array& to) {
  if (!placement.gpu) return;
  Gpu::open(*placement.gpu).copy_to_host(to.tensor.data, from.data, extent_bytes(from), nullptr);
}

double seconds_at(const Placement& placement, const std::function<void()>& run) {
  if (!placement.gpu) return seconds_of(run);
  return seconds_of([&] {
    run();
    Gpu::open(*placement.gpu).synchronize(nullptr);
  });
}

Timing measure_at(const Placement& placement, const std::function<void()>& run, double budget) {
  if (!placement.gpu) return measure(run, budget);
  const Gpu& gpu = Gpu::open(*placement.gpu);
  run();
  const double estimate = std::max(window(gpu, run, 3), 1e-7);
  const auto runs = static_cast<int64_t>(std::ceil(kWindowSeconds / estimate));
  const double windows = std::max<double>(kFewestWindows, budget / kWindowSeconds);
  std::vector<double> times;
  while (static_cast<double>(times.size()) < windows) times.push_back(window(gpu, run, runs));
  return summarize(std::move(times), runs);
}

}  // namespace tessella::cli
