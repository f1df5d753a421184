// The rows that a check compares if it does not compare all.
#pragma once

#include <cstdint>

#include "portable/dropout.hpp"

namespace tessella::reference {

// An extension that every compiler has which builds this.
__extension__ typedef __int128 Wide;  // NOLINT(modernize-use-using): `using` takes no __extension__

// One row from each of `samples` equal ranges of all rows.
inline int64_t sampled_row(int64_t sample, int64_t samples, int64_t total, uint64_t seed) {
  const auto part = static_cast<int64_t>(static_cast<Wide>(sample) * total / samples);
  const auto next = static_cast<int64_t>(static_cast<Wide>(sample + 1) * total / samples);
  const portable::Random4 random =
      portable::philox4x32_7({{static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32), 0, 0}},
                             static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  return part + random.word[0] % (next - part);
}

}  // namespace tessella::reference
