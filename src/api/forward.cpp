#include "api/forward.hpp"

#include <algorithm>
#include <string>

#include "api/arena.hpp"
#include "api/host_copy.hpp"
#include "core/cancel.hpp"
#include "core/choose.hpp"
#include "core/environment.hpp"
#include "core/error.hpp"
#include "core/message.hpp"
#include "core/validate.hpp"
#include "cuda/driver/memory.hpp"
#include "reference/kernels.hpp"

namespace tessella::api {

using core::AttentionArguments;
using core::AttentionShape;
using core::invalid;
using core::message;
using core::Plan;

AttentionArguments read(const tessella_forward_args* args, const tessella_attention_options& options,
                        const char* function, void* stream, Memory memory) {
  const AttentionArguments arguments = normalize(grown(args, function), options, function, memory);
  const bool checks_values = arguments.device.type != core::DeviceType::cpu &&
                             (options.check_device_values != 0 || core::environment_check_device_values());
  core::validate(arguments, function);
  if (checks_values) core::validate_tables(HostCopy(arguments, Copied::tables, stream).arguments(), function);
  return arguments;
}

std::string_view forced_kernel(const char* kernel) {
  return kernel != nullptr ? std::string_view(kernel) : core::environment_kernel();
}

AttentionShape bounds(const AttentionShape& shape, const tessella_attention_options& options) {
  AttentionShape bounds = shape;
  bounds.seqlen_q = std::max(shape.seqlen_q, options.max_seqlen_q);
  bounds.seqlen_kv = std::max(shape.seqlen_kv, options.max_seqlen_kv);
  bounds.total_q = std::max(shape.total_q, bounds.seqlen_q);
  bounds.total_kv = std::max(shape.total_kv, bounds.seqlen_kv);
  return bounds;
}

namespace {

const int32_t* cancel_flag(const core::Arguments& arguments) {
  return std::visit([](const auto* a) { return a->cancel; }, arguments);
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
  if (core::is_cancelled(cancel_flag(arguments))) {
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

reference::CheckReport check(const AttentionArguments& arguments, int64_t num_rows, uint64_t seed) {
  core::AttentionShape on_cpu = arguments;
  on_cpu.device = {};
  if (const std::string reason = core::refusal(reference::reference_kernels().front(), on_cpu); !reason.empty()) {
    core::unsupported(message("check: the reference ", reason));
  }
  if (arguments.device.type == core::DeviceType::cpu) return reference::check_forward(arguments, num_rows, seed);
  cuda::synchronize(arguments.device);
  const HostCopy copy(arguments, Copied::all, nullptr);
  core::validate_tables(copy.arguments(), "check");
  return reference::check_forward(copy.arguments(), num_rows, seed);
}

}  // namespace tessella::api
