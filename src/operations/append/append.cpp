#include "operations/append/append.hpp"

#include <algorithm>
#include <string>

#include "core/error.hpp"
#include "core/operation_of.hpp"

namespace tessella::core {

const OperationType& AppendShape::type() {
  static constexpr OperationOf<Append> kType;
  return kType;
}

std::string Append::ineligible(const Kernel& kernel, const AppendShape& shape) {
  return ineligible_head_dim(kernel, "head_dim",
                             std::max({shape.k_new.head_dim, shape.v_new.head_dim, shape.q.head_dim}));
}

void AppendArguments::derive_shape() {
  const bool is_cpu = device.type == DeviceType::cpu;
  rows.alignment = cache.alignment = is_cpu ? 1 : 16;
  const auto add = [is_cpu](OperandShape& shape, const Operand& t) {
    shape.dtype = t.dtype;
    if (!is_cpu) shape.alignment = std::min(shape.alignment, alignment(t));
  };
  appended_rows(*this, [&](const AppendedNames& names, const RowsShape&, const AppendArguments::Rows& given) {
    add(rows, given.from);
    add(names.is_cache ? cache : rows, given.into);
  });
  rotary = cos.dtype;
}

AppendShape Append::bounds(const AppendShape& shape, const Options& options) {
  AppendShape bounds = shape;
  bounds.total_new = std::max(shape.total_new, options.max_seqlen_new);
  if (shape.seqlen_new == shape.total_new) bounds.seqlen_new = bounds.total_new;
  return bounds;
}

void Append::validate_checkable(const AppendArguments& a) {
  if (a.q.heads == 0 || a.q_rows.from.data != a.q_rows.into.data) return;
  invalid("check: q_out is q, expected memory of its own: the append has written over what it read");
}

}  // namespace tessella::core
