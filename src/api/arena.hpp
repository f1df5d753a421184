// Workspace of plain calls: the caller's allocator, or one block per thread that grows and is used again.
#pragma once

#include "core/kernel.hpp"
#include "tessella/tessella.h"

namespace tessella::api {

// Memory for one run, given back by the destructor. Throws Error(out_of_memory).
class RunMemory {
 public:
  RunMemory(const core::WorkspaceSize& size, const tessella_allocator* allocator, void* stream);
  ~RunMemory();
  RunMemory(const RunMemory&) = delete;
  RunMemory& operator=(const RunMemory&) = delete;
  core::Workspace workspace() const { return workspace_; }

 private:
  core::Workspace workspace_;
  const tessella_allocator* allocator_;
  void* stream_;
  void* block_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace tessella::api
