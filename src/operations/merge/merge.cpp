#include "operations/merge/merge.hpp"

#include <algorithm>
#include <string>
#include <tuple>

#include "core/error.hpp"
#include "core/message.hpp"
#include "core/operation_of.hpp"

namespace tessella::core {

const OperationType& MergeShape::type() {
  static constexpr OperationOf<Merge> kType;
  return kType;
}

std::string Merge::ineligible(const Kernel& kernel, const MergeShape& shape) {
  return ineligible_head_dim(kernel, "head_dim", shape.head_dim);
}

void MergeArguments::derive_shape() {
  const bool is_cpu = device.type == DeviceType::cpu;
  num_states = static_cast<int32_t>(given.size());
  states = {given.front().out.dtype, is_cpu ? 1 : 16};
  for (const MergeArguments::State& state : given) {
    if (!is_cpu) states.alignment = std::min(states.alignment, alignment(state.out));
  }
  out = {result.out.dtype, is_cpu ? 1 : alignment(result.out)};
  if (result.lse.dtype != DType::none) features |= Feature::lse;
}

MergeShape Merge::bounds(const MergeShape& shape, const Options& options) {
  MergeShape bounds = shape;
  bounds.seqlen = std::max(shape.seqlen, options.max_seqlen);
  return bounds;
}

void Merge::validate_checkable(const MergeArguments& a) {
  for (int32_t i = 0; i < a.num_states; ++i) {
    const auto& state = a.given[static_cast<size_t>(i)];
    for (const auto& [name, given, result] :
         {std::tuple{"out", &state.out, &a.result.out}, std::tuple{"lse", &state.lse, &a.result.lse}}) {
      if (given->data == nullptr || given->data != result->data) continue;
      invalid(message("check: ", name, " is that of state ", i,
                      ", expected memory of its own: the merge has written over what it read"));
    }
  }
}

}  // namespace tessella::core
