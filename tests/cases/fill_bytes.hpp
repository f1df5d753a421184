// Chosen elements of 8 bits.
#pragma once

#include <cstdint>

#include "tessella/tessella.h"

namespace tessella::tests {

// value(row, column) in a dense tensor (1, rows, 1, head_dim).
template <class Value>
void fill_bytes(const tessella_tensor& tensor, const Value& value) {
  auto* data = static_cast<uint8_t*>(tensor.data);
  for (int64_t row = 0; row < tensor.shape[1]; ++row) {
    for (int64_t column = 0; column < tensor.shape[3]; ++column) *data++ = value(row, column);
  }
}

}  // namespace tessella::tests
