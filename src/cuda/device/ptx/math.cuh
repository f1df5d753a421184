// Arithmetic that C++ has no operator for.
#pragma once

namespace tessella::device::ptx {

// 2^x, relative error below 2^-22; 2^-inf is 0, NaN stays.
__device__ __forceinline__ float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// The lowest `count` bits, all for 32 and more.
__device__ __forceinline__ uint32_t low_bits(uint32_t count) {
  uint32_t bits;
  asm("bmsk.clamp.b32 %0, 0, %1;" : "=r"(bits) : "r"(count));
  return bits;
}
// log2(x), absolute error below 2^-22.
__device__ __forceinline__ float log2(float x) {
  float y;
  asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// 1 / x within one ulp.
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Two floats rounded to nearest even, `low` in the low half.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ __forceinline__ uint32_t pack_f16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ __forceinline__ float f16_to_float(uint16_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

// (x & mask) | bits and (x & mask) ^ bits in one instruction. With two constants the assembler would emit two.
__device__ __forceinline__ uint32_t and_or(uint32_t x, uint32_t mask, uint32_t bits) {
  uint32_t y;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(y) : "r"(x), "r"(mask), "r"(bits));
  return y;
}
__device__ __forceinline__ uint32_t and_xor(uint32_t x, uint32_t mask, uint32_t bits) {
  uint32_t y;
  asm("lop3.b32 %0, %1, %2, %3, 0x6A;" : "=r"(y) : "r"(x), "r"(mask), "r"(bits));
  return y;
}
// a b + c of both halves of pairs, rounded once.
__device__ __forceinline__ uint32_t fma_bf16(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t sum;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
  return sum;
}
__device__ __forceinline__ uint32_t fma_f16(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t sum;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
  return sum;
}
// Four floats rounded to nearest even in 8 bits, the first in the lowest byte; what is beyond the largest number, 448
// of e4m3 and 57344 of e5m2, becomes that number. sm_89 and later.
#if __CUDA_ARCH__ >= 890
inline constexpr bool kPacksFloat8 = true;
#define TESSELLA_PACK(type)                                                        \
  asm("{\n.reg .b16 low, high;\ncvt.rn.satfinite." type                            \
      "x2.f32 low, %2, %1;\n"                                                      \
      "cvt.rn.satfinite." type "x2.f32 high, %4, %3;\nmov.b32 %0, {low, high};\n}" \
      : "=r"(packed)                                                               \
      : "f"(a), "f"(b), "f"(c), "f"(d))
#else
inline constexpr bool kPacksFloat8 = false;
#define TESSELLA_PACK(type)
#endif
__device__ __forceinline__ uint32_t pack_e4m3(float a, float b, float c, float d) {
  uint32_t packed = 0;
  TESSELLA_PACK("e4m3");
  return packed;
}
__device__ __forceinline__ uint32_t pack_e5m2(float a, float b, float c, float d) {
  uint32_t packed = 0;
  TESSELLA_PACK("e5m2");
  return packed;
}
#undef TESSELLA_PACK
// Converts the two lower bytes, fp8 e4m3, to a pair of f16, exactly.
#if __CUDA_ARCH__ >= 890
inline constexpr bool kWidensFloat8 = true;
#else
inline constexpr bool kWidensFloat8 = false;
#endif
__device__ __forceinline__ uint32_t float8_to_f16(uint32_t word) {
  uint32_t widened = 0;
#if __CUDA_ARCH__ >= 890
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(widened) : "h"(static_cast<uint16_t>(word)));
#endif
  return widened;
}

// Nearest tf32: 10 bits of mantissa, the rest zero; the largest numbers become infinity. Hopper has an instruction for
// it. Before, a NaN may become infinity or zero, but its difference to the result stays NaN.
#if __CUDA_ARCH__ >= 900
inline constexpr bool kRoundsToTf32 = true;
#else
inline constexpr bool kRoundsToTf32 = false;
#endif
__device__ __forceinline__ float to_tf32(float x) {
  uint32_t bits = __float_as_uint(x);
  if constexpr (kRoundsToTf32) {
    asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  } else {
    bits = (bits + 0x1000) & 0xFFFFE000;
  }
  return __uint_as_float(bits);
}

}  // namespace tessella::device::ptx
