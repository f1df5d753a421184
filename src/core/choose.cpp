#include "core/choose.hpp"

#include <algorithm>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/message.hpp"
#include "core/operation_type.hpp"

namespace tessella::core {
namespace {

std::string explain(const Plan& plan, ForcedKernel forced, const PreferredKernel& preferred) {
  std::string string = plan.shape.type().shown(plan.shape.data());
  string += message("\nfeatures: ", names(features(plan.shape)), "\n");
  const bool is_preferred = !forced.is_given() && plan.kernel->name == preferred.name;
  string += message("kernel: ", plan.kernel->name, " (", plan.kernel->summary, ")",
                    is_preferred                 ? message(", ", preferred.reason)
                    : !forced.is_given()         ? ""
                    : forced.variable == nullptr ? ", named by the caller"
                                                 : message(", named by ", forced.variable),
                    "\n");
  if (plan.kernel->device == DeviceType::cpu) string += message("threads: at most ", plan.num_threads, "\n");
  if (plan.kernel->describe != nullptr) string += plan.kernel->describe(plan) + "\n";
  string += message("workspace: state ", plan.workspace.state_bytes, " bytes, scratch ", plan.workspace.scratch_bytes,
                    " bytes\n");
  if (plan.made_bytes > 0) {
    const bool is_map = features(plan.shape).has(Feature::mask_map);
    string += message(is_map ? "mask_map: " : "schedule: ", plan.made_bytes, " bytes\n");
  }
  for (const IneligibleKernel& other : plan.ineligible)
    string += message("not eligible: ", other.kernel, ": ", other.reason, "\n");
  return string;
}

// Kernels that a call of this shape may have, whether or not they are eligible.
template <typename Visit>
void visit_kernels(const Shape& shape, std::span<const KernelTable> tables, Visit visit) {
  for (const KernelTable& table : tables) {
    for (const Kernel& kernel : table) {
      if (kernel.device == device(shape).type && kernel.operation == operation(shape)) visit(kernel);
    }
  }
}

// Why no kernel at all would do, where one sentence says it, or "": dtypes and features that none has.
std::string common_reason(const Shape& shape, std::span<const KernelTable> tables) {
  const DType dtype = core::dtype(shape);
  const std::string where = message("no ", name(operation(shape)), " kernel on ",
                                    device(shape).type == DeviceType::cpu ? "the CPU" : "a GPU");
  uint32_t dtypes = 0, kv_dtypes = 0;
  Features supported;
  visit_kernels(shape, tables, [&](const Kernel& kernel) {
    dtypes |= kernel.dtypes;
    if ((kernel.dtypes & dtype_bit(dtype)) == 0) return;
    kv_dtypes |= kernel.kv_dtypes;
    supported |= kernel.features;
  });
  if (dtypes == 0) return "";
  if ((dtypes & dtype_bit(dtype)) == 0) {
    return message(shape.type().first_tensor, ".dtype is ", name(dtype), ", and ", where, " computes it, expected ",
                   names_of_dtypes(dtypes));
  }
  if (std::string reason = shape.type().missing_dtypes(kv_dtypes, shape.data(), where); !reason.empty()) return reason;
  const Features missing = features(shape).without(supported);
  return missing.empty() ? "" : message(where, " supports ", names(missing));
}

[[noreturn]] void fail_forced(const Plan& plan, const Shape& shape, std::span<const KernelTable> tables,
                              ForcedKernel forced, const char* function) {
  const char* named_by = forced.variable == nullptr ? "kernel" : forced.variable;
  if (!plan.ineligible.empty()) {
    unsupported(message(function, ": ", named_by, " is ", forced.name,
                        ", which cannot run this call: ", plan.ineligible[0].reason));
  }
  std::string known;
  visit_kernels(shape, tables, [&](const Kernel& kernel) { known += message(known.empty() ? "" : ", ", kernel.name); });
  invalid(message(function, ": ", named_by, " is \"", forced.name, "\", expected one of ", known));
}

// Kernels with the same reason stand together.
[[noreturn]] void fail(const Plan& plan, const Shape& shape, std::span<const KernelTable> tables,
                       const char* function) {
  if (const std::string reason = common_reason(shape, tables); !reason.empty()) {
    unsupported(message(function, ": ", reason));
  }
  std::string string = message(function, ": no kernel computes this call");
  std::vector<std::string_view> said;
  for (const IneligibleKernel& first : plan.ineligible) {
    if (std::ranges::find(said, first.reason) != said.end()) continue;
    said.push_back(first.reason);
    std::string kernels;
    for (const IneligibleKernel& other : plan.ineligible) {
      if (other.reason == first.reason) kernels += message(kernels.empty() ? "" : ", ", other.kernel);
    }
    string += message("; ", kernels, ": ", first.reason);
  }
  unsupported(string);
}

// Threads that the kernel's runs use.
int threads(const Kernel& kernel, const Shape& shape) {
  return kernel.threads == nullptr ? 1 : kernel.threads(facts(shape).num_threads);
}

// Why not, by the kernel's row alone, or "".
std::string ineligible_by_row(const Kernel& kernel, const Shape& shape) {
  const ShapeFacts call = facts(shape);
  if (kernel.operation != call.operation) {
    return message("computes ", name(kernel.operation), ", not ", name(call.operation));
  }
  if (kernel.device != call.device.type) {
    return message("runs on ", name(kernel.device), " tensors, and ", shape.type().is_on, location(call.device));
  }
  if (kernel.unavailable != nullptr) {
    if (std::string reason = kernel.unavailable(call.device); !reason.empty()) return reason;
  }
  if (std::string reason = ineligible_dtypes(kernel, shape); !reason.empty()) return reason;
  if (std::string reason = shape.type().ineligible(kernel, shape.data()); !reason.empty()) return reason;
  const Features missing = call.features.without(kernel.features);
  return missing.empty() ? "" : "does not support " + names(missing);
}

Offer offer(const Kernel& kernel, const Shape& shape, int num_threads) {
  if (std::string reason = ineligible_by_row(kernel, shape); !reason.empty()) return {.ineligible = std::move(reason)};
  return kernel.offer == nullptr ? Offer() : kernel.offer(shape, num_threads);
}

}  // namespace

std::string ineligible_dtypes(const Kernel& kernel, const Shape& shape) {
  if ((kernel.dtypes & dtype_bit(dtype(shape))) == 0) return message("does not compute ", name(dtype(shape)));
  return shape.type().ineligible_dtypes(kernel, shape.data());
}

std::string ineligible(const Kernel& kernel, const Shape& shape) {
  std::string reason = offer(kernel, shape, threads(kernel, shape)).ineligible;
  return reason.empty() && kernel.missing != nullptr ? kernel.missing() : reason;
}

Plan choose(const Shape& shape, std::span<const KernelTable> tables, ForcedKernel forced, const char* function,
            const PreferredKernel& preferred) {
  Plan plan{.shape = {shape.type(), shape.type().keep(shape.data())}};
  const uint32_t dtype = dtype_bit(core::dtype(shape));
  // Whether the plan is the kernel's now.
  const auto take = [&](const Kernel& kernel) {
    const int num_threads = threads(kernel, plan.shape);
    auto [reason, leaves, workspace, made_bytes, recipe] = offer(kernel, plan.shape, num_threads);
    if (reason.empty() && !forced.is_given()) {
      if ((kernel.automatic & dtype) == 0) {
        reason = message("is not chosen for ", name(core::dtype(shape)), " unless named");
      } else if (kernel.name != preferred.name) {
        reason = std::move(leaves);
      }
    }
    if (reason.empty() && kernel.missing != nullptr) reason = kernel.missing();
    if (!reason.empty()) {
      plan.ineligible.push_back({kernel.name, std::move(reason)});
      return false;
    }
    plan.kernel = &kernel;
    plan.num_threads = num_threads;
    plan.workspace = workspace;
    plan.made_bytes = made_bytes;
    plan.recipe = std::move(recipe);
    plan.explanation = explain(plan, forced, preferred);
    return true;
  };
  const auto is_for_this = [&](const Kernel& kernel) {
    return kernel.device == device(shape).type && kernel.operation == operation(shape);
  };
  const Kernel* tried = nullptr;
  for (const KernelTable& table : tables) {
    if (forced.is_given()) break;
    for (const Kernel& kernel : table) {
      if (kernel.name != preferred.name || !is_for_this(kernel)) continue;
      if (take(kernel)) return plan;
      tried = &kernel;
    }
  }
  for (const KernelTable& table : tables) {
    for (const Kernel& kernel : table) {
      if (forced.is_given() ? kernel.name != forced.name : !is_for_this(kernel)) continue;
      if (!forced.is_given() && kernel.automatic == 0) continue;  // the ladder is there to be named, not to be chosen
      if (&kernel != tried && take(kernel)) return plan;
    }
  }
  if (forced.is_given()) fail_forced(plan, shape, tables, forced, function);
  fail(plan, shape, tables, function);
}

void check_fits(const Plan& plan, const Shape& shape, const char* function) {
  if (operation(shape) != operation(plan.shape)) {
    invalid(message(function, ": operation is ", name(operation(shape)), ", expected ", name(operation(plan.shape)),
                    ", what the plan was made for"));
  }
  if (&shape.type() != &plan.shape.type()) throw Error(ErrorCode::internal, "a plan is of another operation");
  shape.type().check_fits(plan.shape.data(), shape.data(), function);
}

}  // namespace tessella::core
