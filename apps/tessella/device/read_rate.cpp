#include "device/read_rate.hpp"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <limits>
#include <numeric>
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

// Four streams at a time, each asked for 1 KB ahead: half as fast again as one, which leaves a core waiting for memory.
uint64_t sum_of(const uint64_t* words, size_t count) {
  constexpr size_t kStreams = 4, kLine = 8, kAhead = 128;
  uint64_t sums[kLine] = {};
  const size_t stream = count / (kStreams * kLine) * kLine;
  for (size_t i = 0; i < stream; i += kLine) {
    for (size_t s = 0; s < kStreams; ++s) {
      const uint64_t* line = words + s * stream + i;
      __builtin_prefetch(line + kAhead);
      for (size_t j = 0; j < kLine; ++j) sums[j] += line[j];
    }
  }
  const uint64_t whole = std::accumulate(std::begin(sums), std::end(sums), uint64_t{0});
  return std::accumulate(words + kStreams * stream, words + count, whole);
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
