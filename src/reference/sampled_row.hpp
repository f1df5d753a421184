// The rows that a check compares if it does not compare all.
#pragma once

#include <cstdint>

#include "portable/dropout.hpp"

namespace tessella::reference {

// One row from each of `samples` equal ranges of all rows.
inline int64_t sampled_row(int64_t sample, int64_t samples, int64_t total, uint64_t seed) {
  const auto part = static_cast<int64_t>(static_cast<__int128>(sample) * total / samples);
  const auto next = static_cast<int64_t>(static_cast<__int128>(sample + 1) * total / samples);
  const portable::Random4 random =
      portable::philox4x32_7({{static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32), 0, 0}},
                             static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  return part + random.word[0] % (next - part);
}

}  // namespace tessella::reference
