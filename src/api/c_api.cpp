// The C shim. No arithmetic.
#include <algorithm>
#include <cstring>
#include <string>
#include <tuple>
#include <type_traits>

#include "api/backends.hpp"
#include "api/call.hpp"
#include "api/dlpack.hpp"
#include "api/guarded.hpp"
#include "api/info.hpp"
#include "api/operations.hpp"
#include "api/plan_cache.hpp"
#include "api/run.hpp"
#include "api/tune.hpp"
#include "api/workspace_use.hpp"
#include "core/cancel.hpp"
#include "core/choose.hpp"
#include "core/error.hpp"
#include "core/message.hpp"
#include "tessella/tessella.h"

struct tessella_plan {
  tessella::core::Plan plan;
  std::string kernel;
};

namespace {

namespace core = tessella::core;
namespace api = tessella::api;
using api::guarded;
using api::require;
using api::t_error;

thread_local api::Message t_answer;  // what a query returned last

// Writes no further than the caller's version of the struct reaches.
template <typename Struct>
void fill(Struct* out, Struct value, const char* function, const char* argument) {
  require(out, function, argument);
  const size_t size = out->struct_size;
  if (size < sizeof(size_t)) {
    core::invalid(
        core::message(function, ": ", argument, "->struct_size is ", size, ", expected sizeof of the struct"));
  }
  value.struct_size = size;
  std::memcpy(out, &value, std::min(size, sizeof(Struct)));
}

// Calls fn.template operator()<Operation>(args, options) with the structs of the call's operation.
template <typename Fn>
void with_structs(const tessella_call* call, const char* function, Fn&& fn) {
  const tessella_call defaults = TESSELLA_CALL_INIT;
  const tessella_call given = core::grow(call, defaults, function, "call");
  const auto operation = static_cast<core::Operation>(given.operation);
  const bool is_called = [&]<typename... Operations>(std::type_identity<std::tuple<Operations...>>) {
    const auto visit = [&]<typename Operation>() {
      if (operation != Operation::kOperation) return false;
      fn.template operator()<Operation>(
          static_cast<const typename Operation::Args*>(given.args),
          api::options_of<Operation>(static_cast<const typename Operation::Options*>(given.options), function));
      return true;
    };
    return (visit.template operator()<Operations>() || ...);
  }(std::type_identity<api::Operations>());
  if (is_called) return;
  core::unsupported(
      core::message(function, ": operation is ", given.operation, ", expected one of tessella_operation, 1 to 8"));
}

// Bytes of what a call of the plan reads that is made before.
void made_bytes(const tessella_plan* plan, const tessella_call* call, size_t* bytes, const char* function) {
  require(plan, function, "plan");
  require(bytes, function, "bytes");
  with_structs(call, function, [&]<typename Operation>(const auto* args, const auto& options) {
    const auto arguments = api::read<Operation>(args, options, function, nullptr, core::Memory::none);
    core::check_fits(plan->plan, core::Shape::view(arguments), function);
    *bytes = static_cast<size_t>(api::made_bytes(plan->plan, &arguments));
  });
}

// Makes it. reads_none: what a plan does that has nothing to be made.
void make_before(const tessella_plan* plan, const tessella_call* call, void* stream, const char* function,
                 const char* reads_none) {
  require(plan, function, "plan");
  if (plan->plan.made_bytes == 0) {
    core::invalid(core::message(function, ": the plan's kernel, ", plan->kernel, ", ", reads_none,
                                ", expected a plan made with one"));
  }
  with_structs(call, function, [&]<typename Operation>(const auto* args, const auto& options) {
    const auto arguments = api::read<Operation>(args, options, function, stream, core::Memory::made);
    core::check_fits(plan->plan, core::Shape::view(arguments), function);
    api::make_before(plan->plan, &arguments, stream, function);
  });
}

const core::Kernel& kernel_at(int32_t idx, const char* function) {
  int64_t remaining = idx;
  for (const core::KernelTable& table : api::kernel_tables()) {
    if (remaining >= 0 && remaining < static_cast<int64_t>(table.size())) return table[static_cast<size_t>(remaining)];
    remaining -= static_cast<int64_t>(table.size());
  }
  core::invalid(core::message(function, ": kernel_idx is ", idx, ", expected 0 to ", tessella_kernel_count() - 1));
}

}  // namespace

extern "C" {

tessella_status tessella_forward(const tessella_forward_args* args, const tessella_attention_options* options,
                                 void* stream) {
  return guarded([&] { api::run_call<core::Forward>(args, options, stream); });
}

tessella_status tessella_backward(const tessella_backward_args* args, const tessella_attention_options* options,
                                  void* stream) {
  return guarded([&] { api::run_call<core::Backward>(args, options, stream); });
}

tessella_status tessella_merge(const tessella_merge_args* args, const tessella_merge_options* options, void* stream) {
  return guarded([&] { api::run_call<core::Merge>(args, options, stream); });
}

tessella_status tessella_append(const tessella_append_args* args, const tessella_append_options* options,
                                void* stream) {
  return guarded([&] { api::run_call<core::Append>(args, options, stream); });
}

tessella_status tessella_copy_pages(const tessella_copy_pages_args* args, const tessella_copy_pages_options* options,
                                    void* stream) {
  return guarded([&] { api::run_call<core::CopyPages>(args, options, stream); });
}

tessella_status tessella_quantize(const tessella_quantize_args* args, const tessella_quantize_options* options,
                                  void* stream) {
  return guarded([&] { api::run_call<core::Quantize>(args, options, stream); });
}

tessella_status tessella_dequantize(const tessella_dequantize_args* args, const tessella_dequantize_options* options,
                                    void* stream) {
  return guarded([&] { api::run_call<core::Dequantize>(args, options, stream); });
}

tessella_status tessella_linear(const tessella_linear_args* args, const tessella_linear_options* options,
                                void* stream) {
  return guarded([&] { api::run_call<core::Linear>(args, options, stream); });
}

tessella_status tessella_plan_make(const tessella_call* call, tessella_plan** plan) {
  return guarded([&] {
    require(plan, "plan_make", "plan");
    with_structs(call, "plan_make", [&]<typename Operation>(const auto* args, const auto& options) {
      const auto arguments = api::read<Operation>(args, options, "plan_make", nullptr, core::Memory::none);
      const auto shape = Operation::bounds(arguments, options);
      Operation::validate_sizes(shape, "plan_make");
      core::Plan made = api::make_plan(shape, api::forced_kernel(options.kernel, arguments.operation), "plan_make");
      std::string kernel(made.kernel->name);
      *plan = new tessella_plan{std::move(made), std::move(kernel)};
    });
  });
}

void tessella_plan_free(tessella_plan* plan) { delete plan; }

tessella_status tessella_plan_run(const tessella_plan* plan, const tessella_call* call,
                                  const tessella_workspace* workspace, void* stream) {
  return guarded([&] {
    require(plan, "plan_run", "plan");
    with_structs(call, "plan_run", [&]<typename Operation>(const auto* args, const auto& options) {
      const auto arguments = api::read<Operation>(args, options, "plan_run", stream);
      if (options.kernel != nullptr && plan->kernel != options.kernel) {
        core::invalid(core::message("plan_run: kernel is \"", options.kernel, "\", and the plan runs ", plan->kernel));
      }
      core::check_fits(plan->plan, core::Shape::view(arguments), "plan_run");
      api::run(plan->plan, &arguments, workspace, options.allocator, stream, "plan_run");
    });
  });
}

tessella_status tessella_plan_initialize(const tessella_plan* plan, const tessella_workspace* workspace, void* stream) {
  return guarded([&] {
    require(plan, "plan_initialize", "plan");
    require(workspace, "plan_initialize", "workspace");
    const auto needed = static_cast<size_t>(plan->plan.workspace.state_bytes);
    if (needed == 0) return;
    if (workspace->state == nullptr || workspace->state_bytes < needed) {
      core::invalid(
          core::message("plan_initialize: workspace.state has ", workspace->state_bytes, " bytes, expected ", needed));
    }
    const api::WorkspaceUse use({.state_bytes = plan->plan.workspace.state_bytes}, {.state = workspace->state},
                                "plan_initialize");
    const core::Device device = core::device(plan->plan.shape);
    if (device.type == core::DeviceType::cpu) {
      std::memset(workspace->state, 0, needed);
    } else {
      api::backend_of(device).zero(device, workspace->state, needed, stream);
    }
  });
}

tessella_status tessella_plan_workspace(const tessella_plan* plan, size_t* state_bytes, size_t* scratch_bytes) {
  return guarded([&] {
    require(plan, "plan_workspace", "plan");
    if (state_bytes != nullptr) *state_bytes = static_cast<size_t>(plan->plan.workspace.state_bytes);
    if (scratch_bytes != nullptr) *scratch_bytes = static_cast<size_t>(plan->plan.workspace.scratch_bytes);
  });
}

tessella_status tessella_plan_schedule_size(const tessella_plan* plan, size_t* bytes) {
  return guarded([&] {
    require(plan, "plan_schedule_size", "plan");
    require(bytes, "plan_schedule_size", "bytes");
    *bytes = static_cast<size_t>(plan->plan.made_bytes);
  });
}

tessella_status tessella_plan_schedule_size_for(const tessella_plan* plan, const tessella_call* call, size_t* bytes) {
  return guarded([&] { made_bytes(plan, call, bytes, "plan_schedule_size_for"); });
}

tessella_status tessella_plan_schedule(const tessella_plan* plan, const tessella_call* call, void* stream) {
  return guarded([&] { make_before(plan, call, stream, "plan_schedule", "follows no schedule"); });
}

tessella_status tessella_plan_mask_map_size(const tessella_plan* plan, const tessella_call* call, size_t* bytes) {
  return guarded([&] { made_bytes(plan, call, bytes, "plan_mask_map_size"); });
}

tessella_status tessella_plan_mask_map(const tessella_plan* plan, const tessella_call* call, void* stream) {
  return guarded([&] { make_before(plan, call, stream, "plan_mask_map", "reads no map of a mask"); });
}

const char* tessella_plan_kernel(const tessella_plan* plan) { return plan == nullptr ? "" : plan->kernel.c_str(); }
const char* tessella_plan_explain(const tessella_plan* plan) {
  return plan == nullptr ? "" : plan->plan.explanation.c_str();
}

tessella_status tessella_check(const tessella_call* call, int64_t num_rows, uint64_t seed,
                               tessella_check_report* report) {
  return guarded([&] {
    if (num_rows < 0) {
      core::invalid(core::message("check: num_rows is ", num_rows, ", expected at least 0 (all)"));
    }
    tessella::reference::CheckReport found;
    with_structs(call, "check", [&]<typename Operation>(const auto* args, const auto& options) {
      const auto arguments = api::read<Operation>(args, options, "check", nullptr, core::Memory::read);
      try {
        found = api::check<Operation>(arguments, num_rows, seed);
      } catch (const core::Cancelled&) {
        throw core::Error(core::ErrorCode::cancelled, "check: the call was cancelled; there is no report");
      }
    });
    tessella_check_report filled = TESSELLA_CHECK_REPORT_INIT;
    filled.rows = found.rows;
    filled.max_error = found.max_error;
    filled.plain_error = found.plain_error;
    filled.tolerance = found.tolerance;
    filled.passed = found.passed ? 1 : 0;
    for (int i = 0; i < 4; ++i) filled.worst_index[i] = found.worst_index[i];
    filled.worst_got = found.worst_got;
    filled.worst_expected = found.worst_expected;
    filled.worst_tensor = found.tensor;
    fill(report, filled, "check", "report");
  });
}

int32_t tessella_kernel_count(void) {
  size_t count = 0;
  for (const core::KernelTable& table : api::kernel_tables()) count += table.size();
  return static_cast<int32_t>(count);
}

tessella_status tessella_kernel_describe(int32_t kernel_idx, tessella_kernel_info* info) {
  return guarded([&] {
    const core::Kernel& kernel = kernel_at(kernel_idx, "kernel_describe");
    const api::KernelStrings& strings = api::kernel_strings(kernel);
    fill(info,
         tessella_kernel_info{sizeof(tessella_kernel_info), strings.name.c_str(), name(kernel.operation),
                              strings.summary.c_str(), name(kernel.device), strings.architectures.c_str(),
                              strings.dtypes.c_str(), strings.automatic.c_str(), strings.features.c_str(),
                              kernel.max_head_dim, strings.unavailable.c_str()},
         "kernel_describe", "info");
  });
}

tessella_status tessella_kernel_refusal(int32_t kernel_idx, const tessella_call* call, const char** reason) {
  return guarded([&] {
    require(reason, "kernel_refusal", "reason");
    const core::Kernel& kernel = kernel_at(kernel_idx, "kernel_refusal");
    with_structs(call, "kernel_refusal", [&]<typename Operation>(const auto* args, const auto& options) {
      const auto arguments = api::read<Operation>(args, options, "kernel_refusal", nullptr, core::Memory::none);
      t_answer.set(core::ineligible(kernel, core::Shape::view(arguments)));
    });
    *reason = t_answer.chars;
  });
}

tessella_status tessella_kernel_cost_of(int32_t kernel_idx, const tessella_call* call, tessella_kernel_cost* cost) {
  return guarded([&] {
    const core::Kernel& kernel = kernel_at(kernel_idx, "kernel_cost_of");
    core::Cost counted;
    with_structs(call, "kernel_cost_of", [&]<typename Operation>(const auto* args, const auto& options) {
      const auto arguments = api::read<Operation>(args, options, "kernel_cost_of", nullptr, core::Memory::none);
      if (kernel.operation != arguments.operation) {
        core::unsupported(core::message("kernel_cost_of: ", kernel.name, " computes ", name(kernel.operation), ", not ",
                                        name(arguments.operation)));
      }
      if (kernel.cost == nullptr || kernel.device != arguments.device.type) {
        core::unsupported(core::message("kernel_cost_of: ", kernel.name,
                                        " does not count its passes and bytes of a call on ",
                                        location(arguments.device)));
      }
      if (const std::string reason = core::ineligible_dtypes(kernel, core::Shape::view(arguments)); !reason.empty()) {
        core::unsupported(core::message("kernel_cost_of: ", kernel.name, " ", reason));
      }
      counted = kernel.cost(&arguments);
    });
    fill(cost,
         tessella_kernel_cost{sizeof(tessella_kernel_cost), counted.score_passes, counted.bytes_moved,
                              counted.extra_bytes},
         "kernel_cost_of", "cost");
  });
}

tessella_status tessella_kernels_build(const char* archs, const char* kernel, tessella_progress progress, void* user) {
  return guarded([&] {
    const auto report = [&](int num_done, int num_total, const std::string& message) {
      if (progress != nullptr) progress(num_done, num_total, message.c_str(), user);
    };
    for (const core::Backend* gpu : api::gpu_backends()) {
      gpu->prebuild(archs == nullptr ? "" : archs, kernel == nullptr ? "" : kernel, report);
    }
  });
}

tessella_status tessella_tune(const tessella_tune_options* options, tessella_progress progress, void* user) {
  return guarded([&] {
    api::tune(options, [&](int num_done, int num_total, const std::string& message) {
      if (progress != nullptr) progress(num_done, num_total, message.c_str(), user);
    });
  });
}

tessella_status tessella_from_dlpack(const void* managed, int32_t versioned, tessella_tensor* tensor) {
  return guarded([&] {
    require(managed, "from_dlpack", "managed");
    require(tensor, "from_dlpack", "tensor");
    *tensor = api::from_dlpack(managed, versioned != 0);
  });
}

tessella_status tessella_to_dlpack(const tessella_tensor* tensor, int32_t versioned, void** managed) {
  return guarded([&] {
    require(tensor, "to_dlpack", "tensor");
    require(managed, "to_dlpack", "managed");
    *managed = api::to_dlpack(*tensor, versioned != 0);
  });
}

int32_t tessella_version(void) { return TESSELLA_VERSION; }
const char* tessella_last_error(void) { return t_error.chars; }

const char* tessella_info(void) {
  if (guarded([] { t_answer.set(api::info()); }) != TESSELLA_OK) return "";
  return t_answer.chars;
}

}  // extern "C"
