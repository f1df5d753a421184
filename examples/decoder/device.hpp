// Where a decoder runs: memory, the steps of rows.cuh, and a step that is repeated.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include <tessella/tensor.hpp>

#include "rows.cuh"

using Memory = std::shared_ptr<std::byte>;  // aligned to 256 bytes, zeroed

class Device {
 public:
  // Of the dtype, f32 or bf16, that rows have. Throws std::runtime_error where there is no GPU, or no NVRTC to compile
  // rows.cuh with.
  static std::unique_ptr<Device> cpu(tessella::DType dtype);
  static std::unique_ptr<Device> gpu(tessella::DType dtype);
  virtual ~Device() = default;

  virtual tessella::Device id() const = 0;
  virtual void* stream() const = 0;
  virtual Memory allocate(size_t bytes) = 0;
  // Both return when it is done, and with it all that was queued before.
  virtual void upload(void* to, const void* from, size_t bytes) = 0;
  virtual void download(void* to, const void* from, size_t bytes) = 0;

  // For rows 0 to `rows`.
  virtual void run(const Embedding& step, int rows) = 0;
  virtual void run(const RmsNorm& step, int rows) = 0;
  virtual void run(const NextToken& step, int rows) = 0;

  // What calling `step` again and again would do, if each call queues the same work. A GPU has it as a graph from the
  // second call on: what the first one must compile and load is there then.
  virtual std::function<void()> repeated(std::function<void()> step) = 0;
};
