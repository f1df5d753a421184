// The flag by which another thread ends a call early.
#pragma once

#include <cstdint>

namespace tessella::core {

// Thrown by a run that saw its flag set and left work undone; the API layer makes an Error of it.
struct Cancelled {};

inline bool is_cancelled(const int32_t* flag) {
  return flag != nullptr && __atomic_load_n(flag, __ATOMIC_RELAXED) != 0;
}

inline void end_if_cancelled(const int32_t* flag) {
  if (is_cancelled(flag)) throw Cancelled();
}

}  // namespace tessella::core
