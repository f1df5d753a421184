// Rows of a quantised cache on the host: portable/quantize.hpp over an append's arguments.
#pragma once

#include "core/arguments.hpp"
#include "portable/new_rows.hpp"
#include "portable/quantize.hpp"

namespace tessella::core {

// The storage type of a cache with this dtype.
constexpr portable::Quantized quantized(DType dtype) {
  using portable::Quantized;
  switch (dtype) {
    case DType::f8e4m3fn: return Quantized::f8e4m3fn;
    case DType::i8: return Quantized::i8;
    case DType::i4: return Quantized::i4;
    default: return Quantized::none;
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
  using portable::Quantized;
  const Quantized dtype = quantized(rows.into.dtype);
  float* const at_scale = scale_of(a, rows, at, head);
  if (a.scale_block != 0) *at_scale = portable::scale_of(portable::largest_magnitude(row, count), dtype);
  const float divisor = at_scale == nullptr ? 1.0f : portable::divisor_of(*at_scale);
  auto* into = reinterpret_cast<uint8_t*>(rows.into.row(at.slot, at.row, head));
  switch (dtype) {
    case Quantized::f8e4m3fn: return portable::quantize_row<Quantized::f8e4m3fn>(row, count, divisor, into);
    case Quantized::i8: return portable::quantize_row<Quantized::i8>(row, count, divisor, into);
    case Quantized::i4: return portable::quantize_row<Quantized::i4>(row, count, divisor, into);
    case Quantized::none: return;
  }
}

}  // namespace tessella::core
