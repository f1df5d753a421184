// A call's tensors in a GPU's memory: uploaded with poison around every one of them, run on, and brought back.
#pragma once

#include <cstddef>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "device/gpu.hpp"
#include "tessella/tessella.h"

namespace tessella::tests {

// Host memory that tensors of a call point into.
struct HostBlock {
  std::byte* data = nullptr;
  size_t bytes = 0;
  bool is_output = false;
  // Of memory that is mostly gaps, the pieces that hold elements: so many bytes at every multiple of the stride.
  size_t piece_bytes = 0;  // 0: all of it
  size_t piece_stride = 0;
};

// The memory of the tensors in args, for callers that hold it in dense arrays of their own.
std::vector<HostBlock> blocks_of(const tessella_forward_args& args);

// The same tensors with a GPU as their device and the host's addresses, for calls that must be errors.
tessella_forward_args said_to_be_on_gpu(const tessella_forward_args& args, std::deque<tessella_tensor>& tensors);

// One at a time in a thread: the memory is the thread's, and is used again.
class GpuTwin {
 public:
  // exact: every block has an allocation of its very size, so that compute-sanitizer sees an access past it.
  GpuTwin(std::span<const HostBlock> blocks, bool exact);
  GpuTwin(const GpuTwin&) = delete;
  GpuTwin& operator=(const GpuTwin&) = delete;

  // A tensor, and a call, over the twins. shows_device: tensors say where they are; otherwise the library finds out.
  tessella_tensor twin(const tessella_tensor& host, bool shows_device) const;
  tessella_forward_args args(const tessella_forward_args& host, bool shows_device);
  tessella_backward_args args(const tessella_backward_args& host, bool shows_device);
  // Where the GPU has what lies at an address of a block; nullptr outside of them.
  void* at(const void* host) const;
  const cli::Gpu& gpu() const { return gpu_; }
  void* stream() const;

  void poison_outputs() const;
  // Waits for every byte of the outputs.
  std::vector<std::byte> outputs() const;

  // Waits, and copies the outputs back. "" or what else was written.
  std::string download();

 private:
  struct Location {
    HostBlock host;
    std::byte* device;
  };
  void upload(const Location& location) const;
  std::string spoiled_arena();

  const cli::Gpu& gpu_;
  std::vector<Location> locations_;
  std::vector<cli::GpuMemory> memories_;  // exact ones
  std::vector<std::byte> image_;          // of the thread's memory, as uploaded
  std::deque<tessella_tensor> tensors_;
  std::vector<tessella_tensor> mod_args_;
  tessella_forward_args forward_{};  // of a backward call
};

}  // namespace tessella::tests
