// Elements of 8 and 4 bits in q's types, as decode's products take them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

#include "builtins.hpp"
#include "cuda/device/tile/widened.cuh"
#include "portable/float8.hpp"
#include "portable/int4.hpp"

namespace tessella::tests {
namespace {

using device::Element;

// Every stored value at every position of a word, with the instruction and without.
template <Element E, Element C, bool HasInstruction>
void expect_widened(float (*value_of)(uint32_t)) {
  constexpr int kHalf = device::half_elements(C), kBits = 16 / kHalf, kWords = device::widened_words(E, C);
  const auto element = [](const uint32_t(&words)[kWords], int at) {
    if (E == Element::f32) return __uint_as_float(words[at]);
    const auto bits = static_cast<uint16_t>(words[at % kHalf] >> at / kHalf * 16);
    return E == Element::bf16 ? portable::to_float(portable::BFloat16{bits})
                              : portable::to_float(portable::Float16{bits});
  };
  for (uint32_t stored = 0; stored < 1u << kBits; ++stored) {
    for (const uint32_t others : {0u, 0x7E7E7E7Eu, 0xFFFFFFFFu}) {
      for (int at = 0; at < 2 * kHalf; ++at) {
        const uint32_t field = ((1u << kBits) - 1) << at * kBits;
        uint32_t words[kWords];
        device::widen<E, C, HasInstruction>((others & ~field) | stored << at * kBits, words);
        const float got = element(words, at);
        const float expected = value_of(stored);
        EXPECT_TRUE(std::isnan(expected) ? std::isnan(got) : got == expected)
            << stored << " at " << at << ": got " << got << ", expected " << expected;
      }
    }
  }
}

template <Element E>
void expect_all_widened() {
  const auto float8 = [](uint32_t bits) {
    return portable::to_float(portable::Float8E4M3{static_cast<uint8_t>(bits)});
  };
  expect_widened<E, Element::e4m3, true>(float8);
  expect_widened<E, Element::e4m3, false>(float8);
  expect_widened<E, Element::i8, true>([](uint32_t bits) { return static_cast<float>(static_cast<int8_t>(bits)); });
  expect_widened<E, Element::i4, true>([](uint32_t bits) {
    const auto byte = static_cast<uint8_t>(bits);
    return static_cast<float>(portable::int4_at(&byte, 0));
  });
}

TEST(Widened, EveryValue) {
  expect_all_widened<Element::bf16>();
  expect_all_widened<Element::f16>();
  expect_all_widened<Element::f32>();
}

}  // namespace
}  // namespace tessella::tests
