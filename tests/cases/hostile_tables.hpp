// Tables in a GPU's memory may hold anything: values from far outside of what they may be to just beyond it.
#pragma once

#include <climits>
#include <cstdint>
#include <utility>
#include <vector>

#include "cases/random.hpp"
#include "cases/tensor_places.hpp"
#include "tessella/tessella.h"

namespace tessella::tests {

// Any word, or one that is nearly right for sequences of 70 queries and 90 keys.
inline int32_t hostile_word(Random& random) {
  static constexpr int64_t kValues[] = {INT_MIN,     -1, 0,  1,   24,  69,  70,  71,      90,
                                        INT_MAX - 1, 25, 91, 200, 280, 360, 361, 1 << 20, INT_MAX};
  return static_cast<int32_t>(random.chance(0.1) ? static_cast<int64_t>(random.bits()) : random.one_of(kValues));
}

// Most values of every table of a call, for as long as this lives.
class HostileTables {
 public:
  HostileTables(const tessella_forward_args& args, uint64_t seed) {
    Random random(seed);
    for (const tessella_tensor* table :
         {args.seqlens_q, args.seqlens_kv, args.leftpad_kv, args.cu_seqlens_q, args.cu_seqlens_kv, args.prefix_lengths,
          args.page_table, args.cache_batch_idx, args.document_ids_q, args.document_ids_kv, args.key_ranges,
          args.query_ranges}) {
      if (table == nullptr) continue;
      auto* values = static_cast<int32_t*>(table->data);
      for (int64_t at = 0; at < extent(*table); ++at) {
        if (!random.chance(0.7)) continue;
        before_.emplace_back(values + at, values[at]);
        values[at] = hostile_word(random);
      }
    }
  }
  HostileTables(const HostileTables&) = delete;
  HostileTables& operator=(const HostileTables&) = delete;
  ~HostileTables() {
    for (const auto& [at, value] : before_) *at = value;
  }

 private:
  std::vector<std::pair<int32_t*, int32_t>> before_;
};

}  // namespace tessella::tests
