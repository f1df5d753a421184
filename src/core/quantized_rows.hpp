// Rows of a quantised cache on the host: portable/quantize.hpp over an append's arguments.
#pragma once

#include "core/arguments.hpp"
#include "portable/new_rows.hpp"
#include "portable/quantize.hpp"

namespace tessella::core {

// How a cache of the dtype is stored.
constexpr portable::CacheElement cache_element(DType dtype) {
  using portable::CacheElement;
  switch (dtype) {
    case DType::f8e4m3fn: return CacheElement::f8e4m3;
    case DType::i8: return CacheElement::i8;
    case DType::i4: return CacheElement::i4;
    default: return CacheElement::as_q;
  }
}

// The scale of a new row of one head; null: it is 1.
inline float* scale_of(const AppendArguments& a, const AppendArguments::Rows& rows, const portable::NewRow& at,
                       int64_t head) {
  if (rows.scale.data == nullptr) return nullptr;
  return reinterpret_cast<float*>(rows.scale.row(at.slot, a.scale_block == 0 ? 0 : at.row, head));
}

// Stores row[0, count) where the new row of one head goes, and its scale where that is computed.
inline void store_quantized(const AppendArguments& a, const AppendArguments::Rows& rows, const portable::NewRow& at,
                            int64_t head, const float* row, int64_t count) {
  using portable::CacheElement;
  const CacheElement dtype = cache_element(rows.into.dtype);
  float* const at_scale = scale_of(a, rows, at, head);
  if (a.scale_block != 0) *at_scale = portable::scale_of(portable::largest_magnitude(row, count), dtype);
  const float divisor = at_scale == nullptr ? 1.0f : portable::divisor_of(*at_scale);
  auto* into = reinterpret_cast<uint8_t*>(rows.into.row(at.slot, at.row, head));
  switch (dtype) {
    case CacheElement::f8e4m3: return portable::quantize_row<CacheElement::f8e4m3>(row, count, divisor, into);
    case CacheElement::i8: return portable::quantize_row<CacheElement::i8>(row, count, divisor, into);
    case CacheElement::i4: return portable::quantize_row<CacheElement::i4>(row, count, divisor, into);
    case CacheElement::as_q: return;
  }
}

}  // namespace tessella::core
