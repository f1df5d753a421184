// Rows of a quantised cache on the host: portable/quantize.hpp over an append's arguments.
#pragma once

#include "core/element.hpp"
#include "operations/append/arguments.hpp"
#include "portable/new_rows.hpp"
#include "portable/quantize.hpp"

namespace tessella::core {

// The scale of a new row of one head.
inline float& scale_of(const AppendArguments& a, const AppendArguments::Rows& rows, const portable::NewRow& at,
                       int64_t head) {
  return *reinterpret_cast<float*>(rows.scale.row(at.slot, a.scale_block == 0 ? 0 : at.row, head));
}

// Stores row[0, count) where the new row of one head goes, and its scale where that is computed.
inline void store_quantized(const AppendArguments& a, const AppendArguments::Rows& rows, const portable::NewRow& at,
                            int64_t head, const float* row, int64_t count) {
  using portable::Element;
  const Element element = core::element(rows.into.dtype);
  float& scale = scale_of(a, rows, at, head);
  if (a.scale_block != 0) scale = portable::scale_of(portable::largest_magnitude(row, count), element);
  const float divisor = portable::divisor_of(scale);
  auto* into = reinterpret_cast<uint8_t*>(rows.into.row(at.slot, at.row, head));
  switch (element) {
    case Element::e4m3: return portable::quantize_row<Element::e4m3>(row, count, divisor, into);
    case Element::i8: return portable::quantize_row<Element::i8>(row, count, divisor, into);
    case Element::i4: return portable::quantize_row<Element::i4>(row, count, divisor, into);
    default: throw Error(ErrorCode::internal, message("no cache is of ", name(rows.into.dtype)));
  }
}

}  // namespace tessella::core
