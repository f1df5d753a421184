// Ranges that the values of many operations must keep.
#pragma once

#include <cstdint>
#include <limits>
#include <utility>

#include "core/error.hpp"
#include "core/message.hpp"

namespace tessella::core {

inline constexpr int64_t kMostRows = std::numeric_limits<int32_t>::max() - 1024;  // row indices fit in 32-bit lanes
inline constexpr int64_t kMostCount = std::numeric_limits<int32_t>::max();

inline void at_most(const char* function, const char* name, int64_t got, int64_t most) {
  if (got > most) unsupported(message(function, ": ", name, " is ", got, ", expected at most ", most));
}

template <typename Shape>
void validate_resources(const Shape& shape, const char* function) {
  for (const auto& [name, value] : {std::pair{"num_threads", shape.num_threads}, {"num_sms", shape.num_sms}}) {
    if (value < 0) invalid(message(function, ": ", name, " is ", value, ", expected at least 0"));
  }
}

inline void expect_flag(const char* function, const char* name, int32_t value) {
  if (value != 0 && value != 1) invalid(message(function, ": ", name, " is ", value, ", expected 0 or 1"));
}

// An entry of a table.
template <typename... Expected>
void expect_entry(bool holds, const char* function, const char* table, int64_t idx, int64_t got,
                  const Expected&... expected) {
  if (!holds) invalid(message(function, ": ", table, "[", idx, "] is ", got, ", expected ", expected...));
}

}  // namespace tessella::core
