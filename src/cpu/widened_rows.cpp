#include "cpu/widened_rows.hpp"

#include <array>
#include <type_traits>

#include "core/element.hpp"
#include "portable/float16.hpp"
#include "portable/float8.hpp"
#include "portable/int4.hpp"
#include "process/once.hpp"

namespace tessella::cpu {
namespace {

using core::DType;
using portable::BFloat16;
using portable::Float16;

// The number of every byte: a load for each element is less than its conversion.
using Numbers = std::array<float, 256>;
template <typename T>
const Numbers& numbers() {
  return process::once([] {
    Numbers of_bytes{};
    for (size_t byte = 0; byte < of_bytes.size(); ++byte) {
      if constexpr (std::is_same_v<T, int8_t>) {
        of_bytes[byte] = static_cast<int8_t>(byte);
      } else {
        of_bytes[byte] = portable::to_float(T{static_cast<uint8_t>(byte)});
      }
    }
    return of_bytes;
  });
}

void widen_bytes(const uint8_t* from, const Numbers& of_bytes, int64_t count, float scale, float* into) {
  for (int64_t c = 0; c < count; ++c) into[c] = of_bytes[from[c]] * scale;
}

template <typename T>
void widen(const std::byte* from, int64_t count, float scale, float* into) {
  const auto* row = reinterpret_cast<const T*>(from);
  for (int64_t c = 0; c < count; ++c) into[c] = portable::to_float(row[c]) * scale;
}

template <typename T, typename Round>
void narrow(const float* from, int64_t count, float divisor, std::byte* into, Round round) {
  auto* row = reinterpret_cast<T*>(into);
  for (int64_t c = 0; c < count; ++c) row[c] = round(from[c] / divisor);
}

}  // namespace

void widen_row(const std::byte* from, DType dtype, int64_t count, float scale, float* into) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(from);
  switch (dtype) {
    case DType::bf16: return widen<BFloat16>(from, count, scale, into);
    case DType::f16: return widen<Float16>(from, count, scale, into);
    case DType::f8e4m3fn: return widen_bytes(bytes, numbers<portable::Float8E4M3>(), count, scale, into);
    case DType::f8e5m2: return widen_bytes(bytes, numbers<portable::Float8E5M2>(), count, scale, into);
    case DType::i8: return widen_bytes(bytes, numbers<int8_t>(), count, scale, into);
    case DType::i4:
      for (int64_t c = 0; c < count; ++c) into[c] = static_cast<float>(portable::int4_at(bytes, c)) * scale;
      return;
    default: return widen<float>(from, count, scale, into);
  }
}

void narrow_row(const float* from, int64_t count, float divisor, DType dtype, std::byte* into) {
  switch (dtype) {
    case DType::bf16:
      return narrow<BFloat16>(from, count, divisor, into, [](float x) { return portable::to_bfloat16(x); });
    case DType::f16:
      return narrow<Float16>(from, count, divisor, into, [](float x) { return portable::to_float16(x); });
    case DType::f8e4m3fn:
      return narrow<portable::Float8E4M3>(from, count, divisor, into, [](float x) { return portable::to_float8(x); });
    default:
      return narrow<portable::Float8E5M2>(from, count, divisor, into, [](float x) { return portable::to_e5m2(x); });
  }
}

}  // namespace tessella::cpu
