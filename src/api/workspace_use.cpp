#include "api/workspace_use.hpp"

#include <pthread.h>

#include <cstdint>
#include <memory>
#include <mutex>

#include "core/error.hpp"
#include "core/message.hpp"

namespace tessella::api {

// A list through the stacks of the threads that run: nothing is allocated, and nothing has to be destroyed.
struct WorkspacesInUse {
  std::mutex mutex;
  WorkspaceUse* first = nullptr;

  static bool meets_any(const WorkspaceUse* use, const WorkspaceUse::Range& range) {
    while (use != nullptr && !use->meets(range)) use = use->next_;
    return use != nullptr;
  }
};

namespace {

constinit WorkspacesInUse g_in_use;

// A forked child has none of the threads that run.
[[maybe_unused]] const int kForkEndsUse = pthread_atfork([] { g_in_use.mutex.lock(); }, [] { g_in_use.mutex.unlock(); },
                                                         [] {
                                                           std::construct_at(&g_in_use.mutex);
                                                           g_in_use.first = nullptr;
                                                         });

}  // namespace

WorkspaceUse::Range WorkspaceUse::range(const void* data, int64_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  return data == nullptr || bytes == 0 ? Range() : Range{begin, begin + static_cast<uintptr_t>(bytes)};
}

WorkspaceUse::WorkspaceUse(const core::WorkspaceSize& size, core::Workspace workspace, const char* function)
    : state_(range(workspace.state, size.state_bytes)), scratch_(range(workspace.scratch, size.scratch_bytes)) {
  const char* taken = nullptr;
  {
    const std::lock_guard lock(g_in_use.mutex);
    if (WorkspacesInUse::meets_any(g_in_use.first, state_)) taken = "state";
    if (WorkspacesInUse::meets_any(g_in_use.first, scratch_)) taken = "scratch";
    if (taken == nullptr) {
      next_ = g_in_use.first;
      g_in_use.first = this;
    }
  }
  if (taken != nullptr) {
    core::invalid(core::message(function, ": workspace.", taken,
                                " is in use by another run, expected a workspace for each of the runs at one time"));
  }
}

WorkspaceUse::~WorkspaceUse() {
  const std::lock_guard lock(g_in_use.mutex);
  WorkspaceUse** at = &g_in_use.first;
  while (*at != nullptr && *at != this) at = &(*at)->next_;
  if (*at == this) *at = next_;  // in a forked child it is not there
}

}  // namespace tessella::api
