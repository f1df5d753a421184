// Workspace of plain calls: the caller's allocator; or on the CPU one block per thread that grows and is used again,
// on a GPU memory of the device's stream-ordered pool. A GPU's state is the stream's own where it has one: setting a
// few bytes of other memory to zero would take the stream 3 us before each kernel.
#pragma once

#include "core/backend.hpp"
#include "tessella/tessella.h"

namespace tessella::api {

// Memory for one run, its state zeroed, given back by the destructor; on a GPU all in the order of the stream. Throws
// Error(out_of_memory).
class RunMemory {
 public:
  // function: whose call it is, for a message.
  RunMemory(const core::WorkspaceSize& size, core::Device device, const tessella_allocator* allocator, void* stream,
            const char* function);
  ~RunMemory();
  RunMemory(const RunMemory&) = delete;
  RunMemory& operator=(const RunMemory&) = delete;
  core::Workspace workspace() const { return workspace_; }

 private:
  void* take_from_caller() const;
  void* take_from_thread() const;

  core::Workspace workspace_;
  core::Device device_;
  const core::Backend* gpu_;  // null on the CPU
  const tessella_allocator* allocator_;
  void* stream_;
  const char* function_;
  void* block_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace tessella::api
