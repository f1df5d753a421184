// A shape lists its members once, in fields(): what the plan cache, the check that a call fits a plan, and explain()
// walk.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <ostream>
#include <type_traits>

namespace tessella::core {

// How a field of a call's shape must compare to that of the plan.
enum class Fit {
  equal,
  at_most,      // lengths: plans of the cache are made for rounded ones
  at_most_few,  // likewise; small ones are rounded little, for kernels of few queries
  at_least,     // alignments
  if_given,     // equal, where the call says anything
  hint,         // decides tiles, not what can be computed: plans of the cache are made for rounded ones
};

// "heads_q", "q.dtype", "mod_args[2].dtype". Put together only to be shown.
struct FieldName {
  const char* owner;
  const char* member = nullptr;
  int idx = -1;
};
inline std::ostream& operator<<(std::ostream& stream, const FieldName& name) {
  stream << name.owner;
  if (name.idx >= 0) stream << '[' << name.idx << ']';
  return name.member == nullptr ? stream : stream << '.' << name.member;
}

// A length to a quarter of a power of two: a sequence that grows meets few plans, and no workspace is over a quarter
// too large. None stays none: of rows that do not exist kernels ask nothing.
constexpr int64_t rounded_length(int64_t length) {
  if (length == 0) return 0;
  const auto at_least = static_cast<uint64_t>(std::max<int64_t>(length, 64));
  const uint64_t step = std::bit_floor(at_least) / 4;
  return static_cast<int64_t>((at_least + step - 1) / step * step);
}

// Rounds the length of few queries so that, times any number of heads, it exceeds 64 only if the length does.
constexpr int64_t rounded_few(int64_t length) {
  const int64_t step = length <= 21 ? 1 : length <= 32 ? 2 : 4;
  return (std::max<int64_t>(length, 1) + step - 1) / step * step;
}

// The shape that a plan of the cache is made for.
template <typename S>
S rounded(S shape) {
  S::fields([&](const FieldName&, auto get, Fit fit) {
    auto& value = std::invoke(get, shape);
    if constexpr (std::is_same_v<decltype(value), int64_t&>) {
      if (fit == Fit::at_most_few && value < 64) {
        value = rounded_few(value);
      } else if (fit == Fit::at_most || fit == Fit::at_most_few || fit == Fit::hint) {
        value = rounded_length(value);
      }
    }
  });
  return shape;
}

}  // namespace tessella::core
