// The shape of merge.
#pragma once

#include <cstdint>

#include "core/fields.hpp"
#include "core/shape.hpp"

namespace tessella::core {

// The shape of merge: `num_states` states (out, lse) of disjoint sets of keys become one.
struct MergeShape {
  using Self = MergeShape;
  static const OperationType& type();  // of merge

  Operation operation = Operation::merge;
  Device device;
  int32_t num_states = 0;
  OperandShape states;  // outs of the states
  OperandShape out;
  int64_t batch = 0;  // packed tensors: 1
  int64_t seqlen = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
  Features features;  // lse: it is written
  int32_t num_threads = 0;
  int32_t num_sms = 0;
  bool operator==(const MergeShape&) const = default;

  DType dtype() const { return states.dtype; }

  // f(FieldName, get, Fit) of every member; std::invoke(get, shape) is the member of a shape.
  template <typename F>
  static void fields(F&& f) {
    f(FieldName{"operation"}, &MergeShape::operation, Fit::equal);
    f(FieldName{"device"}, &MergeShape::device, Fit::equal);
    f(FieldName{"features"}, &MergeShape::features, Fit::equal);  // before the operands that they bring
    f(FieldName{"num_states"}, &MergeShape::num_states, Fit::equal);
    f(FieldName{"batch"}, &MergeShape::batch, Fit::equal);
    f(FieldName{"seqlen"}, &MergeShape::seqlen, Fit::at_most);
    f(FieldName{"heads"}, &MergeShape::heads, Fit::equal);
    f(FieldName{"head_dim"}, &MergeShape::head_dim, Fit::equal);
    f(
        FieldName{"outs", "dtype"}, [](auto& shape) -> auto& { return shape.states.dtype; }, Fit::equal);
    f(
        FieldName{"outs", "alignment"}, [](auto& shape) -> auto& { return shape.states.alignment; }, Fit::at_least);
    f(
        FieldName{"out", "dtype"}, [](auto& shape) -> auto& { return shape.out.dtype; }, Fit::equal);
    f(
        FieldName{"out", "alignment"}, [](auto& shape) -> auto& { return shape.out.alignment; }, Fit::at_least);
    f(FieldName{"num_threads"}, &MergeShape::num_threads, Fit::if_given);
    f(FieldName{"num_sms"}, &MergeShape::num_sms, Fit::equal);
  }
};

inline const MergeShape& merge(const Shape& shape) { return shape.as<MergeShape>(); }

}  // namespace tessella::core
