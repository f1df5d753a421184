// The shape of append.
#pragma once

#include <cstdint>

#include "core/fields.hpp"
#include "core/shape.hpp"

namespace tessella::core {

// Heads and head dim of rows; none where they are absent.
struct RowsShape {
  int64_t heads = 0;
  int64_t head_dim = 0;
  bool operator==(const RowsShape&) const = default;
};

// The shape of append: rows k_new and v_new go into the caches k and v, and q is rotated like k_new. Tables say where
// rows go; plans do not depend on them.
struct AppendShape {
  using Self = AppendShape;
  static const OperationType& type();  // of append

  Operation operation = Operation::append;
  Device device;
  OperandShape rows;        // of k_new, v_new, q and q_out
  OperandShape cache;       // of k and v: the dtype of rows, or a quantised one
  int64_t scale_block = 0;  // of a quantised cache: 0: its scales are given, 1: those of each new row are computed
  int64_t batch = 0;
  int64_t seqlen_new = 0;  // rows of a sequence of k_new, v_new and q; packed: 0
  int64_t total_new = 0;   // rows of the packed tensors; otherwise seqlen_new
  RowsShape k_new, v_new, q;
  DType rotary = DType::none;  // of cos and sin
  int64_t rotary_dim = 0;      // columns that are rotated; 0: none
  bool rotary_interleaved = false;
  int32_t num_threads = 0;
  int32_t num_sms = 0;
  bool operator==(const AppendShape&) const = default;

  DType dtype() const { return rows.dtype; }

  // f(FieldName, get, Fit) of every member; std::invoke(get, shape) is the member of a shape.
  template <typename F>
  static void fields(F&& f) {
    f(FieldName{"operation"}, &AppendShape::operation, Fit::equal);
    f(FieldName{"device"}, &AppendShape::device, Fit::equal);
    f(FieldName{"batch"}, &AppendShape::batch, Fit::at_most);
    f(FieldName{"seqlen_new"}, &AppendShape::seqlen_new, Fit::at_most);
    f(FieldName{"total_new"}, &AppendShape::total_new, Fit::at_most);
    f(
        FieldName{"rows", "dtype"}, [](auto& shape) -> auto& { return shape.rows.dtype; }, Fit::equal);
    f(
        FieldName{"rows", "alignment"}, [](auto& shape) -> auto& { return shape.rows.alignment; }, Fit::at_least);
    f(
        FieldName{"cache", "dtype"}, [](auto& shape) -> auto& { return shape.cache.dtype; }, Fit::equal);
    f(
        FieldName{"cache", "alignment"}, [](auto& shape) -> auto& { return shape.cache.alignment; }, Fit::at_least);
    f(FieldName{"scale_block"}, &AppendShape::scale_block, Fit::equal);
    const auto rows = [&f](const char* name, RowsShape AppendShape::*member) {
      f(
          FieldName{name, "heads"}, [member](auto& shape) -> auto& { return (shape.*member).heads; }, Fit::equal);
      f(
          FieldName{name, "head_dim"}, [member](auto& shape) -> auto& { return (shape.*member).head_dim; }, Fit::equal);
    };
    rows("k_new", &AppendShape::k_new);
    rows("v_new", &AppendShape::v_new);
    rows("q", &AppendShape::q);
    f(FieldName{"rotary_cos", "dtype"}, &AppendShape::rotary, Fit::equal);
    f(FieldName{"rotary_dim"}, &AppendShape::rotary_dim, Fit::equal);
    f(FieldName{"rotary_interleaved"}, &AppendShape::rotary_interleaved, Fit::equal);
    f(FieldName{"num_threads"}, &AppendShape::num_threads, Fit::if_given);
    f(FieldName{"num_sms"}, &AppendShape::num_sms, Fit::equal);
  }
};

inline const AppendShape& append(const Shape& shape) { return shape.as<AppendShape>(); }

}  // namespace tessella::core
