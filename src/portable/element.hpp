// Element types as kernels know them.
#pragma once

#include "portable/integers.hpp"

namespace tessella::portable {

// e4m3, e5m2: OCP 8-bit Floating Point Specification, revision 1.0; e4m3 without infinities.
enum class Element : int32_t { bf16, f16, f32, e4m3, e5m2, i8, i4 };

constexpr int32_t bits_of(Element element) {
  switch (element) {
    case Element::f32: return 32;
    case Element::bf16:
    case Element::f16: return 16;
    case Element::e4m3:
    case Element::e5m2:
    case Element::i8: return 8;
    case Element::i4: return 4;
  }
  return 0;
}
// For elements of whole bytes; not for i4, which has two in a byte.
constexpr int32_t size_bytes(Element element) { return bits_of(element) / 8; }

// Elements of 8 or 4 bits, which need a scale for their range.
constexpr bool is_quantized(Element element) { return bits_of(element) < 16; }

// What caches hold with fewer bits than q, beside scales (portable/quantize.hpp).
constexpr bool is_of_caches(Element element) {
  return element == Element::e4m3 || element == Element::i8 || element == Element::i4;
}

constexpr const char* name(Element element) {
  switch (element) {
    case Element::bf16: return "bf16";
    case Element::f16: return "f16";
    case Element::f32: return "f32";
    case Element::e4m3: return "e4m3";
    case Element::e5m2: return "e5m2";
    case Element::i8: return "i8";
    case Element::i4: return "i4";
  }
  return "";
}

// What the tensors of a call to attention hold. Kernels read the type of out at run time, as it costs nothing in a
// loop: OutputParams::out_element.
struct Elements {
  Element q = Element::bf16;
  Element kv = Element::bf16;
  Element p = Element::bf16;  // probabilities, as the product with v takes them
  bool operator==(const Elements&) const = default;
};

// Whether q, k, v and probabilities have one type.
constexpr bool are_one(const Elements& e) { return e.q == e.kv && e.q == e.p; }

}  // namespace tessella::portable
