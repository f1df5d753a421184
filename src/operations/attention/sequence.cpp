#include "operations/attention/sequence.hpp"

namespace tessella::core {

namespace {

// The first query whose keys end behind j. Of those that follow it, none begins at an earlier key.
int64_t first_query_before(const Sequence& s, int64_t j) {
  int64_t begin = 0;
  for (int64_t end = s.len_q; begin < end;) {
    const int64_t i = begin + (end - begin) / 2;
    if (s.band.end(i) > j) {
      end = i;
    } else {
      begin = i + 1;
    }
  }
  return begin;
}

}  // namespace

bool band_sees(const Sequence& s, int64_t j) {
  const int64_t i = first_query_before(s, j);
  return i < s.len_q && s.band.visible(i, j);
}

bool band_sees_any(const Sequence& s, int64_t begin, int64_t end) {
  if (s.len_q <= 0) return false;
  // What lies before the first query's keys or behind the last one's needs no test of each key.
  begin = std::max(begin, int64_t{0});
  end = std::min(end, s.band.end(s.len_q - 1));
  if (end <= s.band.begin(0)) end = std::min(end, s.band.keep_first);
  for (int64_t j = begin; j < end; ++j) {
    if (band_sees(s, j)) return true;
  }
  return false;
}

bool seen_by_any_query(const AttentionArguments& p, const Sequence& s, int64_t kv_head, int64_t j) {
  if (!p.features.has_any(kElementMasks)) return band_sees(s, j);
  for (int64_t i = first_query_before(s, j); i < s.len_q && s.band.visible(i, j); ++i) {
    for (int64_t g = 0; g < p.group(); ++g) {
      if (visible(s, kv_head * p.group() + g, i, j)) return true;
    }
  }
  return false;
}

}  // namespace tessella::core
