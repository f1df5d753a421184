#include "process/float_mode.hpp"

#if defined(__x86_64__)
#include <xmmintrin.h>
#elif !defined(__aarch64__)
#include <cfenv>
#endif

namespace tessella::process {
namespace {

#if defined(__x86_64__)

// MXCSR: bits 7 to 12 mask the exceptions, 13 and 14 round (0: to nearest), 15 flushes results and 6 inputs.
constexpr uint32_t kKeep = 0x1F80;
constexpr uint32_t kFlush = kKeep | 0x8000 | 0x0040;
uint64_t read_mode() { return _mm_getcsr(); }
void write_mode(uint64_t mode) { _mm_setcsr(static_cast<uint32_t>(mode)); }

#elif defined(__aarch64__)

// FPCR: bits 22 and 23 round (0: to nearest), 24 flushes. Bit 19, which flushes halves, stays 0.
constexpr uint64_t kKeep = 0;
constexpr uint64_t kFlush = uint64_t{1} << 24;
uint64_t read_mode() {
  uint64_t mode;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
}
void write_mode(uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }

#else

// No way to flush that all compilers know.
constexpr uint64_t kKeep = FE_TONEAREST;
constexpr uint64_t kFlush = kKeep;
uint64_t read_mode() { return static_cast<uint64_t>(std::fegetround()); }
void write_mode(uint64_t mode) { std::fesetround(static_cast<int>(mode)); }

#endif

}  // namespace

FloatMode::FloatMode(Subnormals subnormals) : callers_(read_mode()) {
  write_mode(subnormals == Subnormals::flush ? kFlush : kKeep);
}
FloatMode::~FloatMode() { write_mode(callers_); }

}  // namespace tessella::process
