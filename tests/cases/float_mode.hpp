// The calling thread's floating-point mode, as a program may have set it before a call.
#pragma once

#include <cfenv>
#include <cstdint>
#include <utility>
#include <vector>

#ifdef __x86_64__
#include <xmmintrin.h>
#endif

namespace tessella::tests {

struct CallersMode {
  const char* name;
  int rounding;
  bool flushes;
};

inline const std::vector<CallersMode>& callers_modes() {
  static const std::vector<CallersMode> list = {
      {"as a process begins", FE_TONEAREST, false},
      {"upward", FE_UPWARD, false},
      {"downward", FE_DOWNWARD, false},
      {"toward zero", FE_TOWARDZERO, false},
      {"flushing", FE_TONEAREST, true},
      {"flushing, upward", FE_UPWARD, true},
  };
  return list;
}

// All that decides what arithmetic gives and which exceptions trap.
inline uint64_t float_mode() {
#if defined(__x86_64__)
  return _mm_getcsr() & ~0x3Fu;  // without the flags of exceptions that were
#elif defined(__aarch64__)
  uint64_t mode;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
#else
  return static_cast<uint64_t>(std::fegetround());
#endif
}

// fn() in that mode. False if the mode was another behind it. On other CPUs than x86 nothing flushes.
template <typename Fn>
bool keeps_mode(const CallersMode& mode, Fn&& fn) {
  std::fenv_t before;
  std::fegetenv(&before);
  std::fesetround(mode.rounding);
#ifdef __x86_64__
  if (mode.flushes) _mm_setcsr(_mm_getcsr() | 0x8040);
#endif
  const uint64_t set = float_mode();
  std::forward<Fn>(fn)();
  const bool is_kept = float_mode() == set;
  std::fesetenv(&before);
  return is_kept;
}

}  // namespace tessella::tests
