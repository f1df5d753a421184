// The shape of copy_pages.
#pragma once

#include <cstdint>

#include "core/fields.hpp"
#include "core/shape.hpp"

namespace tessella::core {

// The shape of copy_pages: pages of every pool are copied to other pages of the same pool.
struct CopyPagesShape {
  using Self = CopyPagesShape;
  static const OperationType& type();  // of copy_pages

  Operation operation = Operation::copy_pages;
  Device device;
  OperandShape pools;  // all of them; alignment: that of a row's bytes too
  int64_t num_pools = 0;
  int64_t num_pages = 0;
  int64_t num_pairs = 0;
  int32_t num_threads = 0;
  int32_t num_sms = 0;
  bool operator==(const CopyPagesShape&) const = default;

  DType dtype() const { return pools.dtype; }

  // f(FieldName, get, Fit) of every member; std::invoke(get, shape) is the member of a shape.
  template <typename F>
  static void fields(F&& f) {
    f(FieldName{"operation"}, &CopyPagesShape::operation, Fit::equal);
    f(FieldName{"device"}, &CopyPagesShape::device, Fit::equal);
    f(FieldName{"num_pools"}, &CopyPagesShape::num_pools, Fit::equal);
    f(FieldName{"num_pages"}, &CopyPagesShape::num_pages, Fit::equal);
    f(FieldName{"num_pairs"}, &CopyPagesShape::num_pairs, Fit::at_most);
    f(
        FieldName{"pools", "dtype"}, [](auto& shape) -> auto& { return shape.pools.dtype; }, Fit::equal);
    f(
        FieldName{"pools", "alignment"}, [](auto& shape) -> auto& { return shape.pools.alignment; }, Fit::at_least);
    f(FieldName{"num_threads"}, &CopyPagesShape::num_threads, Fit::if_given);
    f(FieldName{"num_sms"}, &CopyPagesShape::num_sms, Fit::equal);
  }
};

inline const CopyPagesShape& copy_pages(const Shape& shape) { return shape.as<CopyPagesShape>(); }

}  // namespace tessella::core
