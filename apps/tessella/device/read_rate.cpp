#include "device/read_rate.hpp"

#include <algorithm>
#include <atomic>
#include <limits>
#include <thread>
#include <vector>

#include "device/read_only_ptx.hpp"
#include "device/rotation.hpp"

namespace tessella::cli {
namespace {

constexpr size_t kChunk = 16;          // bytes of a load on a GPU
constexpr unsigned kThreads = 512;     // of a block, as the kernel has it
constexpr int kBlocksEach[] = {2, 4};  // on a multiprocessor; which is faster differs between GPUs

double seconds_on_gpu(const Placement& placement, const Memory& memory, size_t bytes, size_t stride, int64_t num_copies,
                      double budget) {
  const Gpu& gpu = Gpu::open(*placement.gpu);
  static void* const kKernel = gpu.load_kernel(kReadOnlyPtx, "read_only");
  const Memory sink(placement, sizeof(uint32_t));
  double best = std::numeric_limits<double>::infinity();
  for (const int blocks_each : kBlocksEach) {
    const auto read = [&](int64_t copy, void* stream) {
      std::byte* from = memory.data() + static_cast<size_t>(copy) * stride;
      uint64_t chunks = bytes / kChunk;
      std::byte* to = sink.data();
      void* arguments[] = {static_cast<void*>(&from), &chunks, static_cast<void*>(&to)};
      gpu.launch_kernel(kKernel, static_cast<unsigned>(blocks_each * gpu.num_multiprocessors()), kThreads, stream,
                        arguments);
    };
    best = std::min(best, measure_rotation(placement, num_copies, read, budget).median);
  }
  return best;
}

uint64_t sum_of(const uint64_t* words, size_t count) {
  uint64_t sum = 0;
  for (size_t i = 0; i < count; ++i) sum += words[i];
  return sum;
}

// All copies in one go: threads that start for one small copy would be most of its time.
double seconds_on_cpu(const Placement& placement, const Memory& memory, size_t bytes, size_t stride, int64_t num_copies,
                      size_t num_threads, double budget) {
  const size_t words = bytes / sizeof(uint64_t);
  const auto read = [&](int64_t, void*) {
    static std::atomic<uint64_t> sum;  // or the loop would be dropped
    std::vector<std::thread> threads;
    for (size_t t = 0; t < num_threads; ++t) {
      threads.emplace_back([&, t] {
        for (int64_t copy = 0; copy < num_copies; ++copy) {
          const std::byte* begin = memory.data() + static_cast<size_t>(copy) * stride;
          const size_t first = words * t / num_threads, end = words * (t + 1) / num_threads;
          sum += sum_of(reinterpret_cast<const uint64_t*>(begin) + first, end - first);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  };
  return measure_rotation(placement, 1, read, budget).median / static_cast<double>(num_copies);
}

}  // namespace

double seconds_to_read(const Placement& placement, const Memory& memory, size_t bytes, size_t stride,
                       int64_t num_copies, int num_threads, double budget) {
  if (placement.gpu) return seconds_on_gpu(placement, memory, bytes, stride, num_copies, budget);
  return seconds_on_cpu(placement, memory, bytes, stride, num_copies, static_cast<size_t>(num_threads), budget);
}

}  // namespace tessella::cli
