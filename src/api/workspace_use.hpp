// Workspaces that callers own, as long as the library works with them: who finds one taken gets an error.
#pragma once

#include "core/kernel.hpp"

namespace tessella::api {

// Marks the workspace as in use from constructor to destructor. CPU: for the whole run. GPU: only while the host queues
// the run; overlapping runs of several streams are not detected.
class WorkspaceUse {
 public:
  // Throws Error(invalid_argument) if a byte of it is in use.
  WorkspaceUse(const core::WorkspaceSize& size, core::Workspace workspace, const char* function);
  ~WorkspaceUse();
  WorkspaceUse(const WorkspaceUse&) = delete;
  WorkspaceUse& operator=(const WorkspaceUse&) = delete;

 private:
  struct Range {
    uintptr_t begin = 0, end = 0;
    bool meets(const Range& other) const { return begin < other.end && other.begin < end; }
  };
  static Range range(const void* data, int64_t bytes);
  bool meets(const Range& range) const { return state_.meets(range) || scratch_.meets(range); }

  const Range state_, scratch_;
  WorkspaceUse* next_ = nullptr;  // in the list of all that are in use

  friend struct WorkspacesInUse;
};

}  // namespace tessella::api
