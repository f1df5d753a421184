// A GPU's memory, stream and clock through the CUDA driver, which is opened when first asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

namespace tessella::cli {

struct DriverFunctions;

// One device of this process. All functions may be called from any thread; failures throw tessella::Error(device).
class Gpu {
 public:
  // Opened once per process, for good.
  static const Gpu& open(int32_t id);

  int32_t id() const { return id_; }
  int32_t num_multiprocessors() const;
  size_t free_bytes() const;
  // Memory, 256-byte aligned.
  void* allocate(size_t bytes) const;
  void release(void* data) const noexcept;

  // A stream that waits for no other, and what is queued on it or, for NULL, on the default one.
  void* make_stream() const;
  void destroy_stream(void* stream) const noexcept;
  void fill(void* data, uint8_t byte, size_t bytes, void* stream) const;
  void copy_to_gpu(void* to, const void* from, size_t bytes, void* stream) const;
  void copy_to_host(void* to, const void* from, size_t bytes, void* stream) const;  // returns when they are there
  void copy_on_gpu(void* to, const void* from, size_t bytes, void* stream) const;
  void synchronize(void* stream) const;

  void* make_event() const;
  void destroy_event(void* event) const noexcept;
  void record(void* event, void* stream) const;
  // Between two recorded events; waits for the second.
  double seconds_between(void* first, void* second) const;

  // What `record` queues on the stream, as a graph to launch as a whole. It runs nothing; the stream is not the
  // default.
  void* make_graph(void* stream, const std::function<void()>& record) const;
  void destroy_graph(void* graph) const noexcept;
  void launch_graph(void* graph, void* stream) const;

  // A kernel of a module in PTX, loaded for good.
  void* load_kernel(const char* ptx, const char* name) const;
  // arguments: the address of each.
  void launch_kernel(void* kernel, unsigned blocks, unsigned threads, void* stream, void** arguments) const;

 private:
  explicit Gpu(int32_t id);
  const DriverFunctions& current() const;  // of the device's primary context, made current in this thread

  int32_t id_;
  void* context_ = nullptr;
};

class GpuMemory {
 public:
  GpuMemory() = default;
  GpuMemory(const Gpu& gpu, size_t bytes) : gpu_(&gpu), data_(gpu.allocate(bytes)), size_(bytes) {}
  GpuMemory(GpuMemory&& other) noexcept { *this = std::move(other); }
  GpuMemory& operator=(GpuMemory&& other) noexcept {
    std::swap(gpu_, other.gpu_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~GpuMemory() {
    if (data_ != nullptr) gpu_->release(data_);
  }
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  size_t size() const { return size_; }

 private:
  const Gpu* gpu_ = nullptr;
  void* data_ = nullptr;
  size_t size_ = 0;
};

class GpuStream {
 public:
  explicit GpuStream(const Gpu& gpu) : gpu_(gpu), handle_(gpu.make_stream()) {}
  GpuStream(const GpuStream&) = delete;
  GpuStream& operator=(const GpuStream&) = delete;
  ~GpuStream() { gpu_.destroy_stream(handle_); }
  void* handle() const { return handle_; }

 private:
  const Gpu& gpu_;
  void* handle_;
};

class GpuEvent {
 public:
  explicit GpuEvent(const Gpu& gpu) : gpu_(gpu), handle_(gpu.make_event()) {}
  GpuEvent(const GpuEvent&) = delete;
  GpuEvent& operator=(const GpuEvent&) = delete;
  ~GpuEvent() { gpu_.destroy_event(handle_); }
  void* handle() const { return handle_; }

 private:
  const Gpu& gpu_;
  void* handle_;
};

class GpuGraph {
 public:
  GpuGraph(const Gpu& gpu, void* stream, const std::function<void()>& record)
      : gpu_(gpu), handle_(gpu.make_graph(stream, record)) {}
  GpuGraph(const GpuGraph&) = delete;
  GpuGraph& operator=(const GpuGraph&) = delete;
  ~GpuGraph() { gpu_.destroy_graph(handle_); }
  void launch(void* stream) const { gpu_.launch_graph(handle_, stream); }

 private:
  const Gpu& gpu_;
  void* handle_;
};

}  // namespace tessella::cli
