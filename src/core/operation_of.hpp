// An OperationType made of a traits struct, which an operation's room gives. It has
//
// * Shape and Arguments: aggregates; Arguments derives from Shape.
// * Shape: Self (itself), type(), fields(f) (core/fields.hpp), operator==, dtype(), operation, device, num_threads,
//   num_sms, and features where it has any.
// * Arguments: memory(a, f) (core/call_memory.hpp), cancel, and made_bytes() where it may be given what is made before.
// * kFirstTensor and kIsOn: words for messages.
// * ineligible(kernel, shape): why the kernel's row does not have the shape, beyond what every row says.
//
// and, where there is something to say, ineligible_dtypes(kernel, shape), missing_dtypes(kv_dtypes, shape, where) and
// keep(shape). Only the room's own .cpp includes this.
#pragma once

#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>

#include "core/call_memory.hpp"
#include "core/error.hpp"
#include "core/fields.hpp"
#include "core/kernel.hpp"
#include "core/message.hpp"
#include "core/operation_type.hpp"

namespace tessella::core {
namespace detail {

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
  S::fields([&](const FieldName& field, auto get, Fit fit) {
    const auto& value = std::invoke(get, shape);
    const std::string_view owner = field.owner;
    const bool is_always = owner == "operation" || owner == "device" || fit == Fit::at_most || fit == Fit::at_most_few;
    const bool is_never = fit == Fit::hint || fit == Fit::at_least || owner == "features";
    if (is_never || (value == std::invoke(get, defaults) && !is_always)) return;
    string << (string.tellp() == 0 ? "" : " ") << field << '=' << shown(value);
  });
  return string.str();
}

// Values are made readable only where one does not fit.
template <typename S>
void check_fields(const S& plan, const S& call, const char* function) {
  S::fields([&](const FieldName& field, auto get, Fit fit) {
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

}  // namespace detail

// Why not, of a head dim beside the most that the kernel's row has, or "".
inline std::string ineligible_head_dim(const Kernel& kernel, const char* argument, int64_t head_dim) {
  if (head_dim <= kernel.max_head_dim) return "";
  return message(argument, " is ", head_dim, ", at most ", kernel.max_head_dim);
}

// Its objects are constants that nobody deletes.
template <typename Operation>
// NOLINTNEXTLINE(cppcoreguidelines-virtual-class-destructor)
class OperationOf final : public OperationType {
  using S = typename Operation::Shape;
  using A = typename Operation::Arguments;
  static const S& of(const void* shape) { return *static_cast<const S*>(shape); }
  static const A& call(const void* arguments) { return *static_cast<const A*>(arguments); }
  static ShapeFacts facts_of(const S& s) {
    ShapeFacts facts{s.operation, s.device, s.dtype(), {}, s.num_threads, s.num_sms};
    if constexpr (requires { s.features; }) facts.features = s.features;
    return facts;
  }

 public:
  constexpr OperationOf() : OperationType(Operation::kFirstTensor, Operation::kIsOn) {}

  ShapeFacts facts(const void* shape) const override { return facts_of(of(shape)); }
  ShapeFacts facts_of_call(const void* arguments) const override { return facts_of(call(arguments)); }
  bool equal(const void* a, const void* b) const override { return of(a) == of(b); }
  std::shared_ptr<const void> keep(const void* shape) const override {
    if constexpr (requires { Operation::keep(of(shape)); }) {
      return Operation::keep(of(shape));
    } else {
      return std::make_shared<const S>(of(shape));
    }
  }
  std::string shown(const void* shape) const override { return detail::shown_fields(of(shape)); }
  void check_fits(const void* plan, const void* shape, const char* function) const override {
    detail::check_fields(of(plan), of(shape), function);
  }
  std::string ineligible_dtypes(const Kernel& kernel, const void* shape) const override {
    if constexpr (requires { Operation::ineligible_dtypes(kernel, of(shape)); }) {
      return Operation::ineligible_dtypes(kernel, of(shape));
    }
    return "";
  }
  std::string ineligible(const Kernel& kernel, const void* shape) const override {
    return Operation::ineligible(kernel, of(shape));
  }
  std::string missing_dtypes(uint32_t kv_dtypes, const void* shape, const std::string& where) const override {
    if constexpr (requires { Operation::missing_dtypes(kv_dtypes, of(shape), where); }) {
      return Operation::missing_dtypes(kv_dtypes, of(shape), where);
    }
    return "";
  }

  Shape shape(const void* arguments) const override { return call(arguments); }
  const int32_t* cancel(const void* arguments) const override { return call(arguments).cancel; }
  int64_t made_bytes(const void* arguments) const override {
    if constexpr (requires { call(arguments).made_bytes(); }) return call(arguments).made_bytes();
    return 0;
  }
  void memory(const void* arguments, const MemoryVisitor& visit) const override { call_memory(call(arguments), visit); }
};

}  // namespace tessella::core
