// The arguments of merge.
#pragma once

#include <vector>

#include "core/access.hpp"
#include "core/arguments.hpp"
#include "core/operand.hpp"
#include "operations/merge/shape.hpp"

namespace tessella::core {

struct MergeArguments : MergeShape {
  struct State {
    Operand out;  // (batch, seqlen, heads, head_dim)
    Operand lse;  // (batch, seqlen, heads, 1), f32, or f64 beside f64
  };
  const int32_t* cancel = nullptr;
  std::vector<State> given;
  State result;  // its lse of dtype none: not written

  // Fills the members of the call's shape that follow from its operands.
  void derive_shape();

  // All that the arguments point to (core/call_memory.hpp); what is absent may be left out.
  template <typename A, typename F>
  static void memory(A& a, F&& f) {
    const auto visit = [&](const FieldName& name, auto& t, Access access, int64_t dim) {
      f(name, t, access, a.batch, a.seqlen, a.heads, dim);
    };
    for (int i = 0; i < a.num_states; ++i) {
      auto& state = a.given[static_cast<size_t>(i)];
      visit({"outs", nullptr, i}, state.out, Access::read, a.head_dim);
      visit({"lses", nullptr, i}, state.lse, Access::read, 1);
    }
    visit({"out"}, a.result.out, Access::written, a.head_dim);
    visit({"lse"}, a.result.lse, Access::written, 1);
    f(FieldName{"cancel"}, Bytes::of(a.cancel), Access::read);
  }
};

inline const MergeArguments& merge(const Arguments& arguments) { return arguments.as<MergeArguments>(); }

}  // namespace tessella::core
