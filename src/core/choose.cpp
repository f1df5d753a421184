#include "core/choose.hpp"

#include <algorithm>
#include <array>
#include <sstream>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "core/error.hpp"
#include "core/fields.hpp"
#include "core/message.hpp"

namespace tessella::core {
namespace {

std::string names(Features features) {
  std::string string;
  for (const FeatureName& entry : kFeatureNames) {
    if (!features.has(entry.feature)) continue;
    if (!string.empty()) string += ' ';
    string += entry.name;
  }
  return string.empty() ? "none" : string;
}

// A member of a shape as users read it.
template <typename Value>
std::string shown(const Value& value) {
  if constexpr (std::is_same_v<Value, Features>) {
    return names(value);
  } else if constexpr (std::is_same_v<Value, std::string_view>) {
    return value.empty() ? "absent" : "given";
  } else if constexpr (std::is_arithmetic_v<Value>) {
    return std::to_string(value);
  } else {
    return std::string(name(value));
  }
}

// Operation, device, lengths, and what else is not as by default: "operation=forward device=cpu batch=2 ...".
template <typename S>
std::string shown_fields(const S& shape) {
  std::ostringstream string;
  const S defaults;
  fields(std::type_identity<S>(), [&](const FieldName& field, auto get, Fit fit) {
    const auto& value = std::invoke(get, shape);
    const std::string_view owner = field.owner;
    const bool is_always = owner == "operation" || owner == "device" || fit == Fit::at_most || fit == Fit::at_most_few;
    const bool is_never = fit == Fit::hint || fit == Fit::at_least || owner == "features";
    if (is_never || (value == std::invoke(get, defaults) && !is_always)) return;
    string << (string.tellp() == 0 ? "" : " ") << field << '=' << shown(value);
  });
  return string.str();
}

std::string explain(const Plan& plan, ForcedKernel forced) {
  std::string string = std::visit([](const auto& shape) { return shown_fields(shape); }, plan.shape);
  string += message("\nfeatures: ", names(features(plan.shape)), "\n");
  string += message("kernel: ", plan.kernel->name, " (", plan.kernel->summary, ")",
                    !forced.is_given()           ? ""
                    : forced.variable == nullptr ? ", named by the caller"
                                                 : message(", named by ", forced.variable),
                    "\n");
  if (plan.kernel->device == DeviceType::cpu) string += message("threads: at most ", plan.num_threads, "\n");
  if (plan.kernel->describe != nullptr) string += plan.kernel->describe(plan) + "\n";
  string += message("workspace: state ", plan.workspace.state_bytes, " bytes, scratch ", plan.workspace.scratch_bytes,
                    " bytes\n");
  if (plan.schedule_bytes > 0) string += message("schedule: ", plan.schedule_bytes, " bytes\n");
  for (const IneligibleKernel& other : plan.ineligible)
    string += message("not eligible: ", other.kernel, ": ", other.reason, "\n");
  return string;
}

// The plan outlives the caller's C++ source.
void keep_sources(Plan& plan) {
  auto* shape = std::get_if<AttentionShape>(&plan.shape);
  if (shape == nullptr) return;
  std::string all;
  const std::array sources = {&shape->score_mod, &shape->mask_mod, &shape->score_mod_gradient};
  for (const std::string_view* source : sources) all += *source;
  if (all.empty()) return;
  plan.sources = std::make_shared<const std::string>(std::move(all));
  std::string_view rest = *plan.sources;
  for (std::string_view* source : sources) {
    *source = rest.substr(0, source->size());
    rest.remove_prefix(source->size());
  }
}

std::string ineligible_head_dim(const Kernel& kernel, const char* argument, int64_t head_dim) {
  if (head_dim <= kernel.max_head_dim) return "";
  return message(argument, " is ", head_dim, ", at most ", kernel.max_head_dim);
}

std::string ineligible_head_dims(const Kernel& kernel, const AttentionShape& shape) {
  std::string reason = ineligible_head_dim(kernel, "head_dim_qk", shape.head_dim_qk);
  return reason.empty() ? ineligible_head_dim(kernel, "head_dim_v", shape.head_dim_v) : reason;
}
std::string ineligible_head_dims(const Kernel& kernel, const MergeShape& shape) {
  return ineligible_head_dim(kernel, "head_dim", shape.head_dim);
}
std::string ineligible_head_dims(const Kernel& kernel, const AppendShape& shape) {
  return ineligible_head_dim(kernel, "head_dim",
                             std::max({shape.k_new.head_dim, shape.v_new.head_dim, shape.q.head_dim}));
}
std::string ineligible_head_dims(const Kernel&, const CopyPagesShape&) { return ""; }
std::string ineligible_head_dims(const Kernel& kernel, const QuantizeShape& shape) {
  return ineligible_head_dim(kernel, "head_dim", shape.head_dim);
}

// Whether `dtypes` names the dtype, or says "as the first tensor" and the dtype is the first tensor's.
bool takes(uint32_t dtypes, DType dtype, DType first) {
  return (dtypes & (dtype_bit(dtype) | (dtype == first ? kSameDType : 0))) != 0;
}

// Why not, of k, v and out with dtypes of their own.
std::string ineligible_mixture(const Kernel& kernel, const AttentionShape& shape) {
  for (const Name operand : {Name::k, Name::v}) {
    const DType dtype = shape.operands[operand].dtype;
    if (!takes(kernel.kv_dtypes, dtype, shape.dtype())) {
      return message("does not compute ", name(operand), ".dtype ", name(dtype), " beside q.dtype ",
                     name(shape.dtype()));
    }
  }
  if (const DType k = shape.operands[Name::k].dtype, v = shape.operands[Name::v].dtype; k != v) {
    return message("takes k and v of one dtype, and k.dtype is ", name(k), " and v.dtype ", name(v));
  }
  if (!takes(kernel.out_dtypes, shape.out_dtype(), shape.dtype())) {
    return message("does not write out.dtype ", name(shape.out_dtype()), " beside q.dtype ", name(shape.dtype()));
  }
  return "";
}
template <typename S>
std::string ineligible_mixture(const Kernel&, const S&) {
  return "";
}

// Why not, of what few kernels have: a class of few queries, a number of splits.
std::string ineligible_options(const Kernel& kernel, const AttentionShape& shape) {
  if (shape.query_class == QueryClass::few && !kernel.serves_few) return "is for many queries, and query_class is few";
  if (shape.num_splits > 1 && !kernel.splits_keys) {
    return message("takes no number of splits, and num_splits is ", shape.num_splits);
  }
  return "";
}
template <typename S>
std::string ineligible_options(const Kernel&, const S&) {
  return "";
}

// The tensor whose device and dtype are the call's.
struct FirstTensor {
  const char* is_on;
  const char* name;
};
FirstTensor first_tensor(Operation operation) {
  switch (operation) {
    case Operation::merge: return {"outs are on ", "outs[0]"};
    case Operation::append: return {"caches are on ", "k_new"};
    case Operation::copy_pages: return {"pools are on ", "pools[0]"};
    case Operation::quantize:
    case Operation::dequantize: return {"x is on ", "x"};
    default: return {"q is on ", "q"};
  }
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

// "f64, f32 or bf16", of bits per DType.
std::string names_of_dtypes(uint32_t dtypes) {
  dtypes &= kAllDTypes;
  std::string string;
  for (auto value = static_cast<int32_t>(DType::f64); value <= static_cast<int32_t>(kLastDType); ++value) {
    const auto dtype = static_cast<DType>(value);
    if ((dtypes & dtype_bit(dtype)) == 0) continue;
    dtypes &= ~dtype_bit(dtype);
    string += message(string.empty() ? "" : dtypes == 0 ? " or " : ", ", name(dtype));
  }
  return string;
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
    return message(first_tensor(operation(shape)).name, ".dtype is ", name(dtype), ", and ", where,
                   " computes it, expected ", names_of_dtypes(dtypes));
  }
  if (const auto* attention = std::get_if<AttentionShape>(&shape)) {
    for (const Name operand : {Name::k, Name::v}) {
      const DType own = attention->operands[operand].dtype;
      if (takes(kv_dtypes, own, dtype)) continue;
      return message(name(operand), ".dtype is ", name(own), " beside q.dtype ", name(dtype), ", and ", where,
                     " computes that, expected ", names_of_dtypes(dtype_bit(dtype) | kv_dtypes));
    }
  }
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
  const int asked = std::visit([](const auto& s) { return s.num_threads; }, shape);
  return kernel.threads == nullptr ? 1 : kernel.threads(asked);
}

// Why not, by the kernel's row alone, or "".
std::string ineligible_by_row(const Kernel& kernel, const Shape& shape) {
  const auto [operation, device] = std::visit([](const auto& s) { return std::tuple(s.operation, s.device); }, shape);
  if (kernel.operation != operation) return message("computes ", name(kernel.operation), ", not ", name(operation));
  if (kernel.device != device.type) {
    return message("runs on ", name(kernel.device), " tensors, and ", first_tensor(operation).is_on, location(device));
  }
  if (kernel.unavailable != nullptr) {
    if (std::string reason = kernel.unavailable(device); !reason.empty()) return reason;
  }
  if (std::string reason = ineligible_dtypes(kernel, shape); !reason.empty()) return reason;
  for (const std::string& reason : std::visit(
           [&](const auto& s) {
             return std::array{ineligible_head_dims(kernel, s), ineligible_options(kernel, s)};
           },
           shape)) {
    if (!reason.empty()) return reason;
  }
  const Features missing = features(shape).without(kernel.features);
  return missing.empty() ? "" : "does not support " + names(missing);
}

Offer offer(const Kernel& kernel, const Shape& shape, int num_threads) {
  if (std::string reason = ineligible_by_row(kernel, shape); !reason.empty()) return {.ineligible = std::move(reason)};
  return kernel.offer == nullptr ? Offer() : kernel.offer(shape, num_threads);
}

}  // namespace

std::string ineligible_dtypes(const Kernel& kernel, const Shape& shape) {
  if ((kernel.dtypes & dtype_bit(dtype(shape))) == 0) return message("does not compute ", name(dtype(shape)));
  return std::visit([&](const auto& s) { return ineligible_mixture(kernel, s); }, shape);
}

std::string ineligible(const Kernel& kernel, const Shape& shape) {
  return offer(kernel, shape, threads(kernel, shape)).ineligible;
}

Plan choose(const Shape& shape, std::span<const KernelTable> tables, ForcedKernel forced, const char* function) {
  Plan plan{.shape = shape};
  keep_sources(plan);
  const uint32_t dtype = dtype_bit(core::dtype(shape));
  for (const KernelTable& table : tables) {
    for (const Kernel& kernel : table) {
      const bool is_for_this = kernel.device == device(shape).type && kernel.operation == operation(shape);
      if (forced.is_given() ? kernel.name != forced.name : !is_for_this) continue;
      if (!forced.is_given() && kernel.automatic == 0) continue;  // the ladder is there to be named, not to be chosen
      const int num_threads = threads(kernel, plan.shape);
      auto [reason, workspace, schedule_bytes, recipe] = offer(kernel, plan.shape, num_threads);
      if (reason.empty() && !forced.is_given() && (kernel.automatic & dtype) == 0) {
        reason = message("is not chosen for ", name(core::dtype(shape)), " unless named");
      }
      if (!reason.empty()) {
        plan.ineligible.push_back({kernel.name, std::move(reason)});
        continue;
      }
      plan.kernel = &kernel;
      plan.num_threads = num_threads;
      plan.workspace = workspace;
      plan.schedule_bytes = schedule_bytes;
      plan.recipe = std::move(recipe);
      plan.explanation = explain(plan, forced);
      return plan;
    }
  }
  if (forced.is_given()) fail_forced(plan, shape, tables, forced, function);
  fail(plan, shape, tables, function);
}

namespace {

// Values are made readable only where one does not fit.
template <typename S>
void check_fields(const S& plan, const S& call, const char* function) {
  fields(std::type_identity<S>(), [&](const FieldName& field, auto get, Fit fit) {
    const auto& got = std::invoke(get, call);
    const auto& made_for = std::invoke(get, plan);
    const auto mismatch = [&](const auto& expected, const char* bound, const char* why) {
      invalid(message(function, ": ", field, " is ", shown(got), ", expected ", bound, shown(expected), why));
    };
    using Value = std::remove_cvref_t<decltype(got)>;
    if (fit == Fit::hint) return;
    if constexpr (std::is_same_v<Value, Features>) {
      for (const FeatureName& entry : kFeatureNames) {
        const bool has = got.has(entry.feature);
        if (has == made_for.has(entry.feature)) continue;
        invalid(message(function, ": ", entry.name, has ? " is given" : " is absent", ", and the plan was made ",
                        has ? "without it" : "with it"));
      }
    } else if constexpr (std::is_same_v<Value, std::string_view>) {
      if (got != made_for) invalid(message(function, ": ", field, " is not the source that the plan was made for"));
    } else if constexpr (std::is_integral_v<Value>) {
      switch (fit) {
        case Fit::at_most:
        case Fit::at_most_few:
          if (got > made_for) mismatch(made_for, "at most ", ", the plan's bound");
          break;
        case Fit::at_least:
          if (got < made_for) mismatch(made_for, "at least ", ", as the plan was made for");
          break;
        case Fit::if_given:
          if (got != 0 && got != made_for) mismatch(made_for, "", ", what the plan was made for");
          break;
        default:
          if (got != made_for) mismatch(made_for, "", ", what the plan was made for");
      }
    } else {
      if (got != made_for) mismatch(made_for, "", ", what the plan was made for");
    }
  });
}

}  // namespace

void check_fits(const Plan& plan, const Shape& shape, const char* function) {
  if (operation(shape) != operation(plan.shape)) {
    invalid(message(function, ": operation is ", name(operation(shape)), ", expected ", name(operation(plan.shape)),
                    ", what the plan was made for"));
  }
  std::visit(
      [&](const auto& call) {
        check_fields(std::get<std::remove_cvref_t<decltype(call)>>(plan.shape), call, function);
      },
      shape);
}

}  // namespace tessella::core
