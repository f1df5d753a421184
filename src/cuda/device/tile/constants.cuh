// Numbers that all kernels share.
#pragma once

namespace tessella::device {

inline constexpr uint32_t kAllLanes = 0xFFFFFFFF;
inline constexpr float kLog2e = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;
// Converts to a float infinity. (NVRTC 12.1 has no constant expression for it.)
struct Infinity {
  __device__ __forceinline__ operator float() const { return __int_as_float(0x7F800000); }
};
inline constexpr Infinity kInfinity;

}  // namespace tessella::device
