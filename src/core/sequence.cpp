#include "core/sequence.hpp"

namespace tessella::core {

bool seen_by_any_query(const AttentionArguments& p, const Sequence& s, int64_t kv_head, int64_t j) {
  for (int64_t i = s.len_q - 1; i >= 0; --i) {
    if (!s.band.visible(i, j)) continue;
    for (int64_t g = 0; g < p.group(); ++g) {
      if (visible(p, s, kv_head * p.group() + g, i, j)) return true;
    }
  }
  return false;
}

}  // namespace tessella::core
