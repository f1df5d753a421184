// amax on the host: the largest |result| of the rows that each of its entries covers.
#pragma once

#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>

#include "operations/attention/arguments.hpp"

namespace tessella::core {

// Before the rows: entries that cover none are 0. Entries of axes that broadcast are written more than once.
inline void clear_amax(const AttentionArguments& a) {
  const Operand& amax = a.tensors[Name::amax];
  if (amax.data == nullptr) return;
  const auto [batch, blocks] = a.scale_axes(a.axes_q(), a.features.has(Feature::packed_q));
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t block = 0; block < blocks; ++block) {
      for (int64_t head = 0; head < a.heads_q; ++head) {
        *reinterpret_cast<float*>(amax.row(b, block, head)) = 0;
      }
    }
  }
}

// Threads may raise one entry at a time. As integers, sizes of floats keep their order, and a NaN is above infinity.
inline void raise_amax(const AttentionArguments& a, int64_t batch_idx, int64_t row_idx, int64_t head, float value) {
  auto* entry = reinterpret_cast<uint32_t*>(a.scale_of_q(a.tensors[Name::amax], batch_idx, row_idx, head));
  const std::atomic_ref<uint32_t> most(*entry);
  const auto size = std::bit_cast<uint32_t>(std::fabs(value));
  uint32_t seen = most.load(std::memory_order_relaxed);
  while (seen < size && !most.compare_exchange_weak(seen, size, std::memory_order_relaxed)) {
  }
}

}  // namespace tessella::core
