#include "operations/quantize/quantize.hpp"

#include <algorithm>
#include <string>

#include "core/operation_of.hpp"

namespace tessella::core {

const OperationType& QuantizeShape::type() {
  static constexpr OperationOf<Quantize> kType;
  return kType;
}

std::string Quantize::ineligible(const Kernel& kernel, const QuantizeShape& shape) {
  return ineligible_head_dim(kernel, "head_dim", shape.head_dim);
}

void QuantizeArguments::derive_shape() {
  const bool is_cpu = device.type == DeviceType::cpu;
  x = {from.dtype, is_cpu ? 1 : alignment(from)};
  out = {into.dtype, is_cpu ? 1 : alignment(into)};
  rotary = cos.dtype;
}

QuantizeShape Quantize::grown(const QuantizeShape& shape, int64_t max_seqlen) {
  QuantizeShape bounds = shape;
  bounds.total = std::max(shape.total, max_seqlen);
  if (!shape.is_packed) bounds.seqlen = bounds.total;
  return bounds;
}

}  // namespace tessella::core
