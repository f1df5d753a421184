#include "api/run.hpp"

#include <cstdint>

#include "api/arena.hpp"
#include "core/cancel.hpp"
#include "core/error.hpp"
#include "core/message.hpp"

namespace tessella::api {
namespace {

using core::invalid;
using core::message;
using core::Plan;

void run_kernel(const Plan& plan, const core::Arguments& arguments, core::Workspace workspace, void* stream,
                const char* function) {
  try {
    plan.kernel->run(arguments, plan, workspace, stream);
  } catch (const core::Cancelled&) {
    throw core::Error(core::ErrorCode::cancelled,
                      message(function, ": the call was cancelled; out and lse hold no result"));
  }
}

}  // namespace

void run(const Plan& plan, const core::Arguments& arguments, const tessella_workspace* workspace,
         const tessella_allocator* allocator, void* stream, const char* function) {
  if (core::is_cancelled(core::cancel(arguments))) {
    throw core::Error(core::ErrorCode::cancelled,
                      message(function, ": the call was cancelled before it began; nothing was touched"));
  }
  if (workspace == nullptr) {
    const RunMemory memory(plan.workspace, core::device(plan.shape), allocator, stream, function);
    run_kernel(plan, arguments, memory.workspace(), stream, function);
    return;
  }
  const auto holds = [](const char* what, const void* data, size_t got, int64_t expected) {
    if (expected == 0) return;
    if (data == nullptr || got < static_cast<size_t>(expected)) {
      invalid(message("plan_run: workspace.", what, " has ", data == nullptr ? 0 : got, " bytes, expected ", expected));
    }
    if (reinterpret_cast<uintptr_t>(data) % 64 != 0) {
      invalid(message("plan_run: workspace.", what, " is not aligned, expected a multiple of 64 bytes"));
    }
  };
  holds("state", workspace->state, workspace->state_bytes, plan.workspace.state_bytes);
  holds("scratch", workspace->scratch, workspace->scratch_bytes, plan.workspace.scratch_bytes);
  run_kernel(plan, arguments, {workspace->state, workspace->scratch}, stream, function);
}

}  // namespace tessella::api
