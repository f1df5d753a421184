#include "api/run.hpp"

#include <string>

#include "api/arena.hpp"
#include "api/backends.hpp"
#include "api/workspace_use.hpp"
#include "core/cancel.hpp"
#include "core/environment.hpp"
#include "core/error.hpp"
#include "core/message.hpp"
#include "core/operation_type.hpp"
#include "core/overlaps.hpp"

namespace tessella::api {

using core::invalid;
using core::message;
using core::Plan;

core::ForcedKernel forced_kernel(const char* kernel, core::Operation operation) {
  if (kernel != nullptr) return {kernel};
  const core::ForcedKernel named{core::environment_kernel(), core::kKernelVariable};
  if (!named.is_given()) return {};
  for (const core::KernelTable& table : kernel_tables()) {
    for (const core::Kernel& entry : table) {
      if (entry.name == named.name) return entry.operation == operation ? named : core::ForcedKernel();
    }
  }
  return named;  // of no kernel: choose() says so
}

int64_t made_bytes(const Plan& plan, const core::Arguments& arguments) {
  const auto needed = plan.kernel->made_needed;
  return plan.made_bytes == 0 || needed == nullptr ? plan.made_bytes : needed(arguments);
}

namespace {

void end_if_cancelled(const core::Arguments& arguments, const char* function) {
  if (!core::is_cancelled(arguments.type().cancel(arguments.data()))) return;
  throw core::Error(core::ErrorCode::cancelled,
                    message(function, ": the call was cancelled before it began; nothing was touched"));
}

// The call has a schedule, or a map of its mask, as large as the plan's kernel reads and writes.
void check_made(const Plan& plan, const core::Arguments& arguments, const char* function) {
  if (plan.made_bytes == 0) return;
  const int64_t expected = made_bytes(plan, arguments);
  const int64_t got = arguments.type().made_bytes(arguments.data());
  if (got >= expected) return;
  if (core::facts(arguments).features.has(core::Feature::mask_map)) {
    invalid(message(function, ": mask_map has ", got, " bytes, expected at least ", expected,
                    " for a call of these sizes"));
  }
  invalid(message(function, ": schedule has ", got, " bytes, expected at least ", expected, ", what the kernel reads"));
}

void run_kernel(const Plan& plan, const core::Arguments& arguments, core::Workspace workspace, void* stream,
                const char* function) {
  try {
    plan.kernel->run(arguments, plan, workspace, stream);
  } catch (const core::Cancelled&) {
    throw core::Error(core::ErrorCode::cancelled,
                      message(function, ": the call was cancelled; its outputs hold no result"));
  }
}

}  // namespace

void run(const Plan& plan, const core::Arguments& arguments, const tessella_workspace* workspace,
         const tessella_allocator* allocator, void* stream, const char* function) {
  end_if_cancelled(arguments, function);
  check_made(plan, arguments, function);
  if (workspace == nullptr) {
    const RunMemory memory(plan.workspace, core::device(plan.shape), allocator, stream, function);
    run_kernel(plan, arguments, memory.workspace(), stream, function);
    return;
  }
  const auto holds = [&](const char* what, const void* data, size_t got, int64_t expected) {
    if (expected == 0) return;
    if (data == nullptr || got < static_cast<size_t>(expected)) {
      invalid(
          message(function, ": workspace.", what, " has ", data == nullptr ? 0 : got, " bytes, expected ", expected));
    }
    if (reinterpret_cast<uintptr_t>(data) % 64 != 0) {
      invalid(message(function, ": workspace.", what, " is not aligned, expected a multiple of 64 bytes"));
    }
  };
  holds("state", workspace->state, workspace->state_bytes, plan.workspace.state_bytes);
  holds("scratch", workspace->scratch, workspace->scratch_bytes, plan.workspace.scratch_bytes);
  const core::Workspace given{workspace->state, workspace->scratch};
  core::validate_workspace(arguments, plan.workspace, given, function);
  const WorkspaceUse use(plan.workspace, given, function);
  run_kernel(plan, arguments, given, stream, function);
}

void make_before(const Plan& plan, const core::Arguments& arguments, void* stream, const char* function) {
  end_if_cancelled(arguments, function);
  check_made(plan, arguments, function);
  plan.kernel->make(arguments, plan, stream);
}

}  // namespace tessella::api
